//! The replies that describe the server: INFO, CONFIG GET, COMMAND, CLIENT LIST, HELLO.
//!
//! *Thread safety*: plain functions over the shared state.

use crate::command::upper;
use crate::glob;
use crate::reply::{RespReply, RespVersion};
use crate::shared::{ClientEntry, RespShared};
use crate::table::{COMMANDS, CommandSpec, find};
use std::fmt::Write;

/// The version of Redis whose commands those of the table have, with their options. Clients choose
/// by it what they send.
const REDIS_VERSION: &str = "7.4.0";

/// The reply to HELLO.
pub(crate) fn hello(id: u64, version: RespVersion) -> RespReply {
    let text = |text: &str| RespReply::text(text);
    let id = RespReply::Integer(i64::try_from(id).unwrap_or(i64::MAX));
    RespReply::Map(vec![
        (text("server"), text("farleaf")),
        (text("version"), text(REDIS_VERSION)),
        (text("proto"), RespReply::Integer(version.number())),
        (text("id"), id),
        (text("mode"), text("standalone")),
        (text("role"), text("master")),
        (text("modules"), RespReply::Array(Vec::new())),
    ])
}

/// How many clients are copied at a time for CLIENT LIST.
const CLIENTS_AT_ONCE: usize = 256;

/// The sections of INFO by default, in order.
const SECTIONS: [&str; 8] =
    ["SERVER", "CLIENTS", "MEMORY", "PERSISTENCE", "STATS", "REPLICATION", "KEYSPACE", "CLUSTER"];

/// The reply to INFO.
pub(crate) fn info(shared: &RespShared, wanted: &[Vec<u8>]) -> RespReply {
    let wanted: Vec<String> = wanted.iter().map(|name| upper(name)).collect();
    let is_all = |name: &String| ["ALL", "DEFAULT", "EVERYTHING"].contains(&name.as_str());
    let takes_all = wanted.is_empty() || wanted.iter().any(is_all);
    let mut text = String::new();
    for section in SECTIONS {
        if !takes_all && !wanted.iter().any(|name| name == section) {
            continue;
        }
        if !text.is_empty() {
            text.push_str("\r\n");
        }
        let (first, rest) = section.split_at(1);
        line(&mut text, format_args!("# {first}{}", rest.to_ascii_lowercase()));
        for (name, value) in section_fields(shared, section) {
            line(&mut text, format_args!("{name}:{value}"));
        }
    }
    RespReply::Verbatim(text)
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{content}\r\n");
}

fn section_fields(shared: &RespShared, section: &str) -> Vec<(&'static str, String)> {
    let config = &shared.config;
    let (connections, rejected, commands) = shared.totals();
    match section {
        "SERVER" => vec![
            ("redis_version", REDIS_VERSION.to_owned()),
            ("redis_mode", "standalone".to_owned()),
            ("server_name", "farleaf".to_owned()),
            ("farleaf_version", config.version.to_owned()),
            ("arch_bits", usize::BITS.to_string()),
            ("process_id", std::process::id().to_string()),
            ("tcp_port", config.port.to_string()),
            ("uptime_in_seconds", shared.uptime().as_secs().to_string()),
        ],
        "CLIENTS" => vec![
            ("connected_clients", shared.connected().to_string()),
            ("maxclients", config.max_clients.to_string()),
            ("blocked_clients", "0".to_owned()),
        ],
        "MEMORY" => vec![
            ("used_memory", resident_bytes().to_string()),
            ("used_memory_rss", resident_bytes().to_string()),
            ("maxmemory", "0".to_owned()),
            ("maxmemory_policy", "noeviction".to_owned()),
        ],
        // Clients wait for this one before they send commands.
        "PERSISTENCE" => vec![("loading", "0".to_owned())],
        "STATS" => vec![
            ("total_connections_received", connections.to_string()),
            ("rejected_connections", rejected.to_string()),
            ("total_commands_processed", commands.to_string()),
        ],
        "REPLICATION" => {
            vec![("role", "master".to_owned()), ("connected_slaves", "0".to_owned())]
        }
        "KEYSPACE" => match shared.last_count() {
            Some((keys, at)) if keys > 0 => {
                let age_s = shared.uptime().saturating_sub(at).as_secs();
                vec![
                    ("db0", format!("keys={keys},expires=0,avg_ttl=0")),
                    ("farleaf_count_age_seconds", age_s.to_string()),
                ]
            }
            _ => Vec::new(),
        },
        "CLUSTER" => vec![("cluster_enabled", "0".to_owned())],
        _ => Vec::new(),
    }
}

/// The memory of this process, as far as the system tells.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let size = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let size_kb = size.and_then(|size| size.split_whitespace().next()?.parse::<u64>().ok());
    size_kb.unwrap_or(0) * 1024
}

/// The settings that CONFIG GET tells.
fn settings(shared: &RespShared) -> [(&'static str, String); 9] {
    let config = &shared.config;
    [
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", config.max_clients.to_string()),
        ("maxmemory", "0".to_owned()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", config.port.to_string()),
        ("proto-max-bulk-len", config.limits.announced_bytes.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ]
}

/// The reply to CONFIG GET.
pub(crate) fn config_get(shared: &RespShared, patterns: &[Vec<u8>]) -> RespReply {
    let patterns: Vec<Vec<u8>> = patterns.iter().map(|it| it.to_ascii_lowercase()).collect();
    let is_wanted = |name: &str| patterns.iter().any(|it| glob::matches(it, name.as_bytes()));
    let found = settings(shared).into_iter().filter(|(name, _)| is_wanted(name));
    RespReply::Map(
        found.map(|(name, value)| (RespReply::text(name), RespReply::text(value))).collect(),
    )
}

fn lower(spec: &CommandSpec) -> RespReply {
    RespReply::text(spec.name.to_ascii_lowercase())
}

/// A command as COMMAND tells it.
fn command(spec: &CommandSpec) -> RespReply {
    let flags = spec.flags().map(RespReply::Simple).collect();
    let (first, last, step) = spec.keys;
    let categories = match spec.flags().next() {
        Some("readonly") => RespReply::Simple("@read"),
        Some("write") => RespReply::Simple("@write"),
        _ => RespReply::Simple("@connection"),
    };
    RespReply::Array(vec![
        lower(spec),
        RespReply::Integer(spec.arity),
        RespReply::Set(flags),
        RespReply::Integer(first),
        RespReply::Integer(last),
        RespReply::Integer(step),
        RespReply::Set(vec![categories]),
        RespReply::Array(Vec::new()),
        RespReply::Array(Vec::new()),
        RespReply::Array(Vec::new()),
    ])
}

/// The reply to COMMAND.
pub(crate) fn command_list() -> RespReply {
    RespReply::Array(COMMANDS.iter().map(command).collect())
}

/// The reply if more names are given than there are commands.
fn too_many(names: &[Vec<u8>]) -> Option<RespReply> {
    let most = COMMANDS.len();
    (names.len() > most).then(|| {
        RespReply::error(format!("{} names are given, and can be at most {most}", names.len()))
    })
}

/// The reply to COMMAND INFO; of all commands without names.
pub(crate) fn command_info(names: &[Vec<u8>]) -> RespReply {
    if names.is_empty() {
        return command_list();
    }
    if let Some(refusal) = too_many(names) {
        return refusal;
    }
    let one = |name: &Vec<u8>| find(name).map_or(RespReply::Null, command);
    RespReply::Array(names.iter().map(one).collect())
}

/// The reply to COMMAND LIST.
pub(crate) fn command_names() -> RespReply {
    RespReply::Array(COMMANDS.iter().map(lower).collect())
}

/// The reply to COMMAND DOCS; of all commands without names.
pub(crate) fn command_docs(names: &[Vec<u8>]) -> RespReply {
    if let Some(refusal) = too_many(names) {
        return refusal;
    }
    let specs: Vec<&CommandSpec> = match names {
        [] => COMMANDS.iter().collect(),
        names => names.iter().filter_map(|name| find(name)).collect(),
    };
    let document = |spec: &&CommandSpec| {
        let text = |name: &str, value: &str| (RespReply::text(name), RespReply::text(value));
        let group = text("group", spec.group);
        (lower(spec), RespReply::Map(vec![text("summary", spec.summary), group]))
    };
    RespReply::Map(specs.iter().map(document).collect())
}

fn client_line(shared: &RespShared, id: u64, entry: &ClientEntry) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let age_s = shared.uptime().saturating_sub(entry.since).as_secs();
    format!(
        "id={id} addr={} name={} age={age_s} db=0 cmd={} user=default lib-name={} lib-ver={} resp={}",
        entry.address,
        text(&entry.name),
        entry.last_command.to_ascii_lowercase(),
        text(&entry.library),
        text(&entry.library_version),
        entry.version.number(),
    )
}

/// The reply to CLIENT INFO.
pub(crate) fn client_info(shared: &RespShared, id: u64) -> RespReply {
    RespReply::Verbatim(client_line(shared, id, &shared.client(id)) + "\n")
}

/// The reply to CLIENT LIST.
pub(crate) fn client_list(shared: &RespShared) -> RespReply {
    let (mut text, mut behind) = (String::new(), 0);
    let max = shared.config.limits.reply_bytes;
    loop {
        let page = shared.clients_behind(behind, CLIENTS_AT_ONCE);
        let Some((last, _)) = page.last() else { return RespReply::Verbatim(text) };
        behind = *last;
        for (id, entry) in &page {
            text += &client_line(shared, *id, entry);
            text.push('\n');
        }
        if text.len() > max {
            return RespReply::error(format!("the list has more than {max} bytes"));
        }
    }
}
