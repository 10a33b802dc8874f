//! A memory server that is stopped or killed under running queries: each such query ends with an
//! error, and the process goes on.

use crate::engine::cells;
use crate::far::{CostMark, FarEngine, MIB, TOKEN};
use crate::lab::ReferenceLab;
use crate::report::Sheet;
use crate::{Batches, Setting, TpchWork};
use anyhow::{Context, Result, ensure};
use farleaf_fabric::conformance::TestService;
use farleaf_fabric::handshake::Token;
use farleaf_fabric::tcp::{TcpServer, TcpServerConfig};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Is a memory server until its standard input ends.
pub(crate) fn be_server(mib: usize) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let service = TestService::new(mib << 20);
    let server =
        TcpServer::start(listener, service, &Token::new(TOKEN)?, TcpServerConfig::default())?;
    println!("{}", server.local_address());
    while std::io::stdin().read(&mut [0; 64])? > 0 {}
    Ok(())
}

/// A memory server in a process of its own, which ends with this value.
struct ServerProcess {
    process: Child,
    address: SocketAddr,
}

impl ServerProcess {
    fn start(mib: usize) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["memory-server", "--mib", &mib.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = process.stdout.take().context("the memory server has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        Ok(Self { process, address: line.trim().parse()? })
    }

    fn id(&self) -> Result<Pid> {
        Pid::from_raw(self.process.id().try_into()?).context("a process has an id")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may be stopped, or dead.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Asks a query, and sends a signal to the memory server `after_ms` later. Returns the error, if
/// there is one, and how long it took.
async fn ask(
    lab: &ReferenceLab,
    far: &FarEngine,
    place: usize,
    server: &ServerProcess,
    (signal, after_ms): (Signal, f64),
) -> Result<(Option<String>, f64)> {
    let (done, wait) = channel::<()>();
    let began = CostMark::now();
    let (after, process) = (Duration::from_secs_f64(after_ms / 1e3), server.id()?);
    let sends = thread::spawn(move || match wait.recv_timeout(after) {
        Err(RecvTimeoutError::Timeout) => kill_process(process, signal),
        _ => Ok(()),
    });
    let answer = far.engine.ask(lab.queries[place]).await;
    drop(done);
    sends.join().expect("sending a signal does not panic")?;
    let ms = began.cost().ms;
    match answer {
        Err(error) => Ok((Some(error.root_cause().to_string()), ms)),
        Ok(answer) => {
            ensure!(cells(&answer)? == lab.expected[place], "an answer is wrong");
            Ok((None, ms))
        }
    }
}

/// Stops the memory server under each query, and kills it under the first one. The others follow.
pub(crate) async fn run(work: &TpchWork, setting: Setting) -> Result<()> {
    let lab = ReferenceLab::new(work).await?;
    let bytes = lab.tables.iter().map(crate::data::TpchTable::footprint).sum::<usize>();
    let server = ServerProcess::start(2 * (bytes >> 20) + 256)?;
    let setting = Setting { server: Some(server.address), ..setting };
    if setting.batches != Batches::Copy {
        println!("without `--batches copy`, a failure can end this process");
    }
    let far = FarEngine::new(setting, &lab.tables)?;
    let times = lab.round(Some(&far)).await?;
    let head = ["query", "the server is", "outcome", "ms", "when it is back"];
    let mut sheet = Sheet::new("death", lab.scope(), &head);
    let (mut errors, mut first_error) = (0, String::new());
    for (place, number) in lab.queries.iter().enumerate() {
        let after_ms = times[place].ms / 3.0;
        let (error, ms) = ask(&lab, &far, place, &server, (Signal::STOP, after_ms)).await?;
        kill_process(server.id()?, Signal::CONT)?;
        if let Some(error) = &error {
            ensure!(!error.contains('\n'), "the error has more than one line: {error}");
            errors += 1;
            first_error.clone_from(error);
        }
        // It loses nothing while it is stopped, and may need a moment.
        let mut attempts = 0;
        let began = CostMark::now();
        let answer = loop {
            attempts += 1;
            match far.engine.ask(*number).await {
                Err(error) if attempts == 100 => return Err(error),
                Err(_) => {}
                Ok(answer) => break answer,
            }
        };
        ensure!(cells(&answer)? == lab.expected[place], "query {number} has a wrong answer");
        sheet.lines.push(vec![
            number.to_string(),
            "stopped".to_owned(),
            error.map_or("right", |_| "error").to_owned(),
            format!("{ms:.0}"),
            format!("right at attempt {attempts}, {:.0} ms", began.cost().ms),
        ]);
    }
    // Killed under the first query. What another one reads may still be in the buffer.
    for (place, number) in lab.queries.iter().enumerate() {
        let after_ms = if place == 0 { times[place].ms / 3.0 } else { 0.0 };
        let (error, ms) = ask(&lab, &far, place, &server, (Signal::KILL, after_ms)).await?;
        sheet.lines.push(vec![
            number.to_string(),
            "killed".to_owned(),
            error.map_or("right", |_| "error").to_owned(),
            format!("{ms:.0}"),
            String::new(),
        ]);
    }
    lab.print(&sheet.text());
    println!("{errors} queries had an error, such as: {first_error}");
    let began = CostMark::now();
    let local_bytes = far.arena.local_bytes();
    drop(far);
    let (ms, mib) = (began.cost().ms, local_bytes as f64 / MIB);
    println!("the region, with {mib:.0} MiB in local memory, has ended in {ms:.0} ms");
    lab.round(None).await?;
    println!("the process goes on: all queries in DRAM have the same answers");
    lab.finish();
    Ok(())
}
