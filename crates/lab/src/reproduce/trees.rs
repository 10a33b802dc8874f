//! The experiments of Ziegler et al., *Designing Distributed Tree-based Index Structures for Fast
//! RDMA-capable Networks* (SIGMOD 2019).
//!
//! §6: 100 M records, four memory servers, forty clients on each compute server, uniform queries.
//! "Skewed" places 80, 12, 5 and 3 percent of the records on the four servers. Scans select the
//! same fractions of the records as in the paper.

use super::analysis;
use super::experiment::ReportMetric::{Bytes, NetworkRate, P50, Throughput};
use super::experiment::{
    AxisPosition, BY_MAGNITUDE, COUNT, ClaimRule, ClaimValue, DOUBLING, FigurePanel, FigureRow,
    FigureShape, LINEAR, PaperClaim, PaperFigure, PaperFigures, RATIO, ReportMetric, RunScale,
    RunSize, TENFOLD,
};

/// The rows to reproduce from the paper of Ziegler et al.
pub(super) const TREES: PaperFigures = PaperFigures {
    name: "trees",
    citation: "Ziegler et al., Designing Distributed Tree-based Index Structures for Fast RDMA-capable \
               Networks (SIGMOD 2019)",
    sizes: &[
        RunSize { scale: RunScale::Small, keys: 200_000, operations: 0, warm_up: 0 },
        RunSize { scale: RunScale::Medium, keys: 2_000_000, operations: 0, warm_up: 0 },
        RunSize { scale: RunScale::Paper, keys: 100_000_000, operations: 0, warm_up: 0 },
    ],
    figures: &[
        T1,
        T2,
        T3,
        F3,
        F7,
        F8,
        F9,
        F10,
        F11,
        F12,
        F13,
        F14,
        F15,
        MESSAGES,
        ATOMICS,
        SECOND_PORT,
    ],
};

const A: &str = "A: points";
const B3: &str = "B: ranges of 0.1%";
const B2: &str = "B: ranges of 1%";
const B1: &str = "B: ranges of 10%";
const C: &str = "C: 5% inserts";
const D: &str = "D: 50% inserts";

const fn even(name: &'static str, words: &'static str, each: u64) -> FigurePanel {
    FigurePanel { name, words, skewed: false, each: Some(each) }
}

const fn skewed(panel: FigurePanel) -> FigurePanel {
    FigurePanel { skewed: true, ..panel }
}

const POINTS: FigurePanel = even(A, "--workload read-only", 100);
const RANGES_3: FigurePanel = even(B3, "--workload scan:0.1%", 100);
const RANGES_2: FigurePanel = even(B2, "--workload scan:1%", 20);
const RANGES_1: FigurePanel = even(B1, "--workload scan:10%", 2);

const EVEN: &[FigurePanel] = &[POINTS, RANGES_3, RANGES_2, RANGES_1];
const SKEWED: &[FigurePanel] =
    &[skewed(POINTS), skewed(RANGES_3), skewed(RANGES_2), skewed(RANGES_1)];

const fn row(name: &'static str, words: &'static str) -> FigureRow {
    FigureRow { name, design: name, words, caches: false }
}

const DESIGNS: &[FigureRow] = &[row("coarse", ""), row("fine", ""), row("hybrid", "")];
/// Hash partitioning has no skewed placement.
const WITH_HASH: &[FigureRow] = &[
    row("coarse", ""),
    FigureRow { name: "coarse, by hash", ..row("coarse", "--partitioning hash") },
    row("fine", ""),
    row("hybrid", ""),
];

const CLIENTS: &[AxisPosition] = &[
    AxisPosition::new(20.0, 1, 20, ""),
    AxisPosition::new(40.0, 1, 40, ""),
    AxisPosition::new(80.0, 2, 40, ""),
    AxisPosition::new(120.0, 3, 40, ""),
    AxisPosition::new(160.0, 4, 40, ""),
    AxisPosition::new(200.0, 5, 40, ""),
    AxisPosition::new(240.0, 6, 40, ""),
];

const UNIFORM: &str = "--distribution uniform --latencies";
const THROUGHPUT: FigureShape = FigureShape::Lines(Throughput);

/// The first row is not below the second one at any number of clients in the range.
const fn above(
    statement: &'static str,
    panel: &'static str,
    rows: [&'static str; 2],
    from: f64,
    to: f64,
) -> PaperClaim {
    let value = ClaimValue::Least { metric: Throughput, panel, rows, from, to };
    PaperClaim::new(statement, value, ClaimRule::AtLeast(1.0))
}

/// A row's value at the second position divided by that at the first one.
const fn growth(panel: &'static str, row: &'static str, from: f64, to: f64) -> ClaimValue {
    ClaimValue::Ratio(Throughput, (panel, row, to), (panel, row, from))
}

/// The first row's metric divided by the second one's, with this many clients.
const fn between(
    metric: ReportMetric,
    panel: &'static str,
    rows: [&'static str; 2],
    clients: f64,
) -> ClaimValue {
    ClaimValue::Ratio(metric, (panel, rows[0], clients), (panel, rows[1], clients))
}

const T1: PaperFigure = PaperFigure::statements(
    "t1",
    "Table 1: symbols of the analysis",
    &[
        PaperClaim::new(
            "fanout M",
            ClaimValue::Closed(analysis::fanout),
            ClaimRule::Within(42.0, COUNT),
        ),
        PaperClaim::new(
            "leaves L",
            ClaimValue::Closed(analysis::leaves),
            ClaimRule::Within(2.3e6, COUNT),
        ),
        PaperClaim::new(
            "height, fine-grained",
            ClaimValue::Closed(|| analysis::height(1.0)),
            ClaimRule::Within(4.0, COUNT),
        ),
        PaperClaim::new(
            "height, coarse-grained, uniform, 4 servers",
            ClaimValue::Closed(|| analysis::height(4.0)),
            ClaimRule::Within(4.0, COUNT),
        ),
    ],
);

const T2: PaperFigure = PaperFigure {
    axes: DOUBLING,
    shape: FigureShape::Closed(analysis::point_queries),
    x: "memory servers",
    ..PaperFigure::statements(
        "t2",
        "Table 2: the analysis, for point queries (maximal queries/s)",
        &[PaperClaim::new(
            "point queries show a similar trend: fine-grained, skewed, 64 servers over 2",
            ClaimValue::Closed(|| analysis::growth("fine", true, 0.0)),
            ClaimRule::AtLeast(30.0),
        )],
    )
};

const T3: PaperFigure = PaperFigure::statements(
    "t3",
    "Table 3: workloads",
    &[
        PaperClaim::new(
            "C: share of inserts",
            ClaimValue::Closed(|| inserts("insert:5")),
            ClaimRule::Within(0.05, COUNT),
        ),
        PaperClaim::new(
            "D: share of inserts",
            ClaimValue::Closed(|| inserts("insert:50")),
            ClaimRule::Within(0.5, COUNT),
        ),
    ],
);

fn inserts(mix: &str) -> f64 {
    farleaf_bench::workload::OperationMix::named(mix).map_or(f64::NAN, |mix| mix.insert_share())
}

const F3: PaperFigure = PaperFigure {
    axes: DOUBLING,
    shape: FigureShape::Closed(analysis::range_queries),
    x: "memory servers",
    ..PaperFigure::statements(
        "3",
        "Figure 3: the analysis, for ranges of 0.1% (maximal queries/s)",
        &[
            PaperClaim::new(
                "all designs scale well for uniform workloads: fine-grained, 64 servers over 2",
                ClaimValue::Closed(|| analysis::growth("fine", false, analysis::SELECTIVITY)),
                ClaimRule::AtLeast(30.0),
            ),
            PaperClaim::new(
                "coarse-grained by hash scales slightly worse than by range: 64 servers",
                ClaimValue::Closed(|| {
                    analysis::most("coarse, by hash", false, analysis::SELECTIVITY, 64.0)
                        / analysis::most("coarse", false, analysis::SELECTIVITY, 64.0)
                }),
                ClaimRule::AtMost(1.0),
            ),
            PaperClaim::new(
                "skewed: fine-grained scales as for uniform workloads",
                ClaimValue::Closed(|| analysis::growth("fine", true, analysis::SELECTIVITY)),
                ClaimRule::AtLeast(30.0),
            ),
            PaperClaim::new(
                "skewed: coarse-grained stagnates: 64 servers over 2",
                ClaimValue::Closed(|| analysis::growth("coarse", true, analysis::SELECTIVITY)),
                ClaimRule::AtMost(1.0),
            ),
        ],
    )
};

const PORTS: &str = "forty clients share one port of their compute server, and whole pages at 70% fill take \
                     more of it than records alone; the paper's machines have two ports";

const PAGES: &str = "a whole page at 70% fill has 1.7 times the bytes of its records, and each machine has one port; \
                     with two, fine reaches 0.9 of coarse (row m3, with more clients and without co-location)";

const F7: PaperFigure = PaperFigure {
    id: "7",
    title: "Figure 7: throughput, skewed data",
    words: UNIFORM,
    panels: SKEWED,
    rows: DESIGNS,
    x: "clients",
    xs: CLIENTS,
    axes: LINEAR,
    shape: THROUGHPUT,
    claims: &[
        above(
            "points: hybrid is above coarse from 40 clients on",
            A,
            ["hybrid", "coarse"],
            40.0,
            240.0,
        ),
        above(
            "points: fine is below hybrid under low load (20 clients)",
            A,
            ["hybrid", "fine"],
            20.0,
            20.0,
        ),
        PaperClaim::new(
            "points: coarse stops growing: 240 clients over 40",
            growth(A, "coarse", 40.0, 240.0),
            ClaimRule::AtMost(1.2),
        ),
        above(
            "ranges of 1%: fine is above coarse from 80 clients on",
            B2,
            ["fine", "coarse"],
            80.0,
            240.0,
        )
        .because(PORTS),
        above(
            "ranges of 1%: hybrid is above coarse from 80 clients on",
            B2,
            ["hybrid", "coarse"],
            80.0,
            240.0,
        )
        .because(PORTS),
    ],
};

const F8: PaperFigure = PaperFigure {
    id: "8",
    title: "Figure 8: throughput, uniform data",
    words: UNIFORM,
    panels: EVEN,
    rows: WITH_HASH,
    x: "clients",
    xs: CLIENTS,
    axes: LINEAR,
    shape: THROUGHPUT,
    claims: &[
        above(
            "points: with 20 clients coarse is at least as good as hybrid",
            A,
            ["coarse", "hybrid"],
            20.0,
            20.0,
        ),
        above(
            "points: with 120 clients and more hybrid is above coarse",
            A,
            ["hybrid", "coarse"],
            120.0,
            240.0,
        ),
        above("points: fine is below hybrid at every load", A, ["hybrid", "fine"], 20.0, 240.0),
        PaperClaim::new(
            "ranges of 1%: fine performs almost as good as hybrid (240 clients)",
            between(Throughput, B2, ["fine", "hybrid"], 240.0),
            ClaimRule::AtLeast(0.75),
        ),
    ],
};

const F9: PaperFigure = PaperFigure {
    id: "9",
    title: "Figure 9: network utilization, skewed data",
    words: UNIFORM,
    panels: SKEWED,
    rows: DESIGNS,
    x: "clients",
    xs: CLIENTS,
    axes: LINEAR,
    shape: FigureShape::Lines(NetworkRate),
    claims: &[
        PaperClaim::new(
            "points: fine is less network efficient than hybrid (bytes of an operation)",
            between(Bytes, A, ["fine", "hybrid"], 240.0),
            ClaimRule::AtLeast(1.0),
        ),
        PaperClaim::new(
            "points: hybrid needs one READ more than coarse (bytes of an operation)",
            between(Bytes, A, ["hybrid", "coarse"], 240.0),
            ClaimRule::AtLeast(1.0),
        ),
        PaperClaim::new(
            "ranges of 0.1%: reading the index adds no noticeable overhead: bytes of fine over coarse",
            between(Bytes, B3, ["fine", "coarse"], 240.0),
            ClaimRule::Factor(1.0, RATIO),
        )
        .because("explained in part: whole pages at 70% fill are half as much again as their records; a range of 200 records has few leaves, so the inner nodes above and the leaves at its ends weigh more than with 1%"),
        PaperClaim::new(
            "ranges of 1%: fine uses more of the network than coarse (240 clients)",
            between(NetworkRate, B2, ["fine", "coarse"], 240.0),
            ClaimRule::AtLeast(1.0),
        ),
    ],
};

const fn records(x: f64) -> AxisPosition {
    AxisPosition { keys: x, ..AxisPosition::new(x, 6, 40, "") }
}

const F10: PaperFigure = PaperFigure {
    id: "10",
    title: "Figure 10: data size, uniform data, 240 clients",
    words: UNIFORM,
    panels: &[POINTS, RANGES_1],
    rows: DESIGNS,
    x: "records, as a multiple of the scale's",
    xs: &[records(0.1), records(1.0), records(4.0)],
    axes: TENFOLD,
    shape: FigureShape::Lines(Throughput),
    claims: &[
        PaperClaim::new(
            "points: forty times the data costs coarse little",
            growth(A, "coarse", 0.1, 4.0),
            ClaimRule::AtLeast(0.5),
        ),
        PaperClaim::new(
            "points: … fine little",
            growth(A, "fine", 0.1, 4.0),
            ClaimRule::AtLeast(0.5),
        ),
        PaperClaim::new(
            "points: … hybrid little",
            growth(A, "hybrid", 0.1, 4.0),
            ClaimRule::AtLeast(0.5),
        ),
        PaperClaim::new(
            "ranges of 10%: fine drops significantly with four times the data",
            growth(B1, "fine", 1.0, 4.0),
            ClaimRule::AtMost(0.5),
        ),
        PaperClaim::new(
            "ranges of 10%: hybrid drops significantly with four times the data",
            growth(B1, "hybrid", 1.0, 4.0),
            ClaimRule::AtMost(0.5),
        ),
    ],
};

const A_SKEWED: &str = "A: points, skewed";
const B2_SKEWED: &str = "B: ranges of 1%, skewed";

const F11: PaperFigure = PaperFigure {
    id: "11",
    title: "Figure 11: number of memory servers, 120 clients",
    words: UNIFORM,
    panels: &[
        POINTS,
        RANGES_2,
        skewed(even(A_SKEWED, "--workload read-only", 100)),
        skewed(even(B2_SKEWED, "--workload scan:1%", 20)),
    ],
    rows: DESIGNS,
    x: "memory servers",
    xs: &[
        servers(1.0, "--memory-servers 1", ""),
        servers(2.0, "--memory-servers 2", "--placement 80,20"),
        servers(4.0, "--memory-servers 4", "--placement 80,12,5,3"),
        servers(8.0, "--memory-servers 8", "--placement 560,20,20,20,20,20,20,20"),
    ],
    axes: DOUBLING,
    shape: THROUGHPUT,
    claims: &[
        PaperClaim::new(
            "ranges, skewed: fine makes use of more servers: 8 over 2",
            growth(B2_SKEWED, "fine", 2.0, 8.0),
            ClaimRule::AtLeast(2.0),
        )
        .because("from 4 servers on, the single ports of the three compute servers are the limit"),
        PaperClaim::new(
            "points, uniform: coarse makes use of more servers: 4 over 2",
            growth(A, "coarse", 2.0, 4.0),
            ClaimRule::AtLeast(1.7),
        ),
        PaperClaim::new(
            "points, skewed: coarse does not: 8 over 2",
            growth(A_SKEWED, "coarse", 2.0, 8.0),
            ClaimRule::AtMost(1.3),
        ),
        PaperClaim::new(
            "points, skewed: hybrid is sensitive to skew too: 8 over 2",
            growth(A_SKEWED, "hybrid", 2.0, 8.0),
            ClaimRule::AtMost(1.3),
        ),
    ],
};

const fn servers(x: f64, words: &'static str, skewed: &'static str) -> AxisPosition {
    AxisPosition { skewed, ..AxisPosition::new(x, 3, 40, words) }
}

const SPINNING: &str = "in the paper the memory servers' threads spin on latches under load; here critical \
                        sections are short and uniform inserts seldom meet, so coarse and hybrid do not degrade";

const F12: PaperFigure = PaperFigure {
    id: "12",
    title: "Figure 12: throughput with inserts, uniform data",
    words: UNIFORM,
    panels: &[even(C, "--workload insert:5", 100), even(D, "--workload insert:50", 100)],
    rows: WITH_HASH,
    x: "clients",
    xs: CLIENTS,
    axes: LINEAR,
    shape: THROUGHPUT,
    claims: &[
        above(
            "5% inserts: hybrid is above coarse from 120 clients on",
            C,
            ["hybrid", "coarse"],
            120.0,
            240.0,
        )
        .because("hybrid is level with coarse at 120 clients and above it from 160 on"),
        above(
            "50% inserts: below 140 clients hybrid is above fine",
            D,
            ["hybrid", "fine"],
            20.0,
            120.0,
        ),
        above(
            "50% inserts: from 160 clients on fine is above hybrid",
            D,
            ["fine", "hybrid"],
            160.0,
            240.0,
        )
        .because(SPINNING),
        above(
            "50% inserts: from 160 clients on fine is above coarse",
            D,
            ["fine", "coarse"],
            160.0,
            240.0,
        )
        .because(SPINNING),
    ],
};

const F13: PaperFigure = PaperFigure {
    id: "13",
    title: "Figure 13: latency, skewed data",
    words: UNIFORM,
    panels: SKEWED,
    rows: DESIGNS,
    x: "clients",
    xs: CLIENTS,
    axes: BY_MAGNITUDE,
    shape: FigureShape::Lines(P50),
    claims: &[
        PaperClaim::new(
            "points, 20 clients: coarse has the lowest latency: its median over hybrid's",
            between(P50, A, ["coarse", "hybrid"], 20.0),
            ClaimRule::AtMost(1.0),
        ),
        PaperClaim::new(
            "points, 240 clients: hybrid's is below coarse's",
            between(P50, A, ["hybrid", "coarse"], 240.0),
            ClaimRule::AtMost(1.0),
        ),
        PaperClaim::new(
            "ranges of 1%, 240 clients: fine's is below coarse's",
            between(P50, B2, ["fine", "coarse"], 240.0),
            ClaimRule::AtMost(1.0),
        ),
    ],
};

const F14: PaperFigure = PaperFigure {
    id: "14",
    title: "Figure 14: latency, uniform data",
    words: UNIFORM,
    panels: EVEN,
    rows: WITH_HASH,
    x: "clients",
    xs: CLIENTS,
    axes: BY_MAGNITUDE,
    shape: FigureShape::Lines(P50),
    claims: &[
        PaperClaim::new(
            "points, 20 clients: coarse's median over fine's",
            between(P50, A, ["coarse", "fine"], 20.0),
            ClaimRule::AtMost(1.0),
        ),
        PaperClaim::new(
            "points, 240 clients: hybrid's is below coarse's",
            between(P50, A, ["hybrid", "coarse"], 240.0),
            ClaimRule::AtMost(1.0),
        )
        .because(
            "coarse has the lower median and the longer tail: its mean and its 99th percentile are above \
             hybrid's; why its tail is longer is not explained",
        ),
    ],
};

const F15: PaperFigure = PaperFigure {
    id: "15",
    title: "Figure 15: co-location, four machines, 80 clients, uniform data",
    words: UNIFORM,
    panels: EVEN,
    rows: &[
        row("coarse", ""),
        FigureRow { name: "coarse, co-located", ..row("coarse", "--model co-located") },
        row("fine", ""),
        FigureRow { name: "fine, co-located", ..row("fine", "--model co-located") },
    ],
    x: "clients",
    xs: &[AxisPosition::new(80.0, 4, 20, "")],
    axes: LINEAR,
    shape: THROUGHPUT,
    claims: &[
        above("points: coarse gains", A, ["coarse, co-located", "coarse"], 80.0, 80.0),
        above("points: fine gains", A, ["fine, co-located", "fine"], 80.0, 80.0),
        above("ranges of 1%: coarse gains", B2, ["coarse, co-located", "coarse"], 80.0, 80.0),
        above("ranges of 1%: fine gains", B2, ["fine, co-located", "fine"], 80.0, 80.0),
        above(
            "co-located, points: coarse is the highest",
            A,
            ["coarse, co-located", "fine, co-located"],
            80.0,
            80.0,
        ),
        above(
            "co-located, ranges of 1%: fine is the highest",
            B2,
            ["fine, co-located", "coarse, co-located"],
            80.0,
            80.0,
        )
        .because(PAGES),
    ],
};

const fn all_clients(x: f64, words: &'static str) -> AxisPosition {
    AxisPosition::new(x, 6, 40, words)
}

const MESSAGES: PaperFigure = PaperFigure {
    id: "m1",
    title: "Not in the paper: for how long a message takes a port at least, which the model assumes",
    words: UNIFORM,
    panels: &[POINTS, RANGES_3],
    rows: DESIGNS,
    x: "ns a message",
    xs: &[
        all_clients(10.0, "--model message=10"),
        all_clients(25.0, "--model message=25"),
        all_clients(40.0, "--model message=40"),
    ],
    axes: LINEAR,
    shape: THROUGHPUT,
    claims: &[],
};

const ATOMICS: PaperFigure = PaperFigure {
    id: "m2",
    title: "Not in the paper: atomics that take turns on a server and on a word, where the model assumes that \
            they need not",
    words: UNIFORM,
    panels: &[even(D, "--workload insert:50", 100)],
    rows: DESIGNS,
    x: "ns an atomic",
    xs: &[
        all_clients(0.0, ""),
        all_clients(100.0, "--model atomic-unit=100,atomic-word=100"),
        all_clients(400.0, "--model atomic-unit=400,atomic-word=400"),
        all_clients(1_000.0, "--model atomic-unit=1000,atomic-word=1000"),
    ],
    axes: LINEAR,
    shape: THROUGHPUT,
    claims: &[],
};

const SECOND_PORT: PaperFigure = PaperFigure {
    id: "m3",
    title: "Not in the paper's figures: a second port in each NIC, as its machines have",
    words: UNIFORM,
    panels: &[POINTS, RANGES_2],
    rows: DESIGNS,
    x: "ports",
    xs: &[all_clients(1.0, ""), all_clients(2.0, "--model ports=2")],
    axes: LINEAR,
    shape: THROUGHPUT,
    claims: &[],
};
