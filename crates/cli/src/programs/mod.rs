//! The programs of a cluster, and the tools that observe one.
//!
//! Every setting is a flag. `--config FILE` reads flags from TOML; flags on the command line
//! override it.

pub(crate) mod client;
pub(crate) mod cluster;
pub(crate) mod compute_server;
pub(crate) mod gateway;
mod layout;
pub(crate) mod memory_server;
pub(crate) mod moves;
pub(crate) mod shell;
pub(crate) mod status;
mod terminal;
pub(crate) mod top;
pub(crate) mod torture;

use anyhow::Context;
use clap::{Args, CommandFactory};
use farleaf_cluster::address::HostPort;
use farleaf_cluster::catalog::CatalogAddress;
use farleaf_cluster::config::{ConfigError, flags_of_file, read_token, set_option};
use farleaf_cluster::error::ProgramError;
use farleaf_cluster::launch::{LauncherFolder, end_with_parent};
use farleaf_cluster::logging::{self, LogLevel};
use farleaf_cluster::records::CatalogKeys;
use farleaf_cluster::stop::StopSignal;
use farleaf_dex::cache::CacheOptions;
use farleaf_dlsm::DlsmOptions;
use farleaf_fabric::handshake::Token;
use farleaf_index::{AcknowledgeName, DEFAULT_CACHE_BYTES, OptionChange};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

/// Commands that can read their settings from a file.
const WITH_FILES: [&str; 4] = ["memory-server", "compute-server", "cluster", "gateway"];

/// Default size of a compute server's cache, as a text.
static DEFAULT_CACHE: LazyLock<String> =
    LazyLock::new(|| format!("{}Mi", DEFAULT_CACHE_BYTES >> 20));

/// Default maximum age of a dirty node, in milliseconds.
const WRITE_BACK_MS: u32 = 1000;

/// Options of every program of a cluster.
#[derive(Debug, Args)]
pub(crate) struct CommonOptions {
    /// Read settings from this TOML file first: `pool_bytes = "4Gi"` stands for `--pool-bytes 4Gi`
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Log to stderr at this level: off, error, warn, info, debug or trace [default: $FARLEAF_LOG,
    /// or info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<LogLevel>,
    /// End when this process, the parent, ends
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<u32>,
}

impl CommonOptions {
    /// Starts the log and the handling of signals.
    fn start(&self) -> anyhow::Result<StopSignal> {
        logging::start(LogLevel::choose(self.log).map_err(ConfigError::Settings)?);
        let stop = StopSignal::on_signals().context("cannot catch signals")?;
        if let Some(parent) = self.parent {
            end_with_parent(parent).context("cannot watch the parent process")?;
        }
        Ok(stop)
    }
}

/// Options of the design that a cluster has.
#[derive(Debug, Args)]
struct OptionArguments {
    /// Set options of compute servers, such as `dex.scan_ahead=8` or `dlsm.level0_stop=72`;
    /// docs/options.md lists them. Can be given several times; in the settings file, `[dex]` and
    /// `[dlsm]` have them
    #[arg(long, value_name = "DESIGN.OPTION=VALUE,…", value_delimiter = ',')]
    set: Vec<OptionChange>,
}

impl OptionArguments {
    /// Sets them, and what `--acknowledge` says if it was given.
    fn apply(
        &self,
        cache: &mut CacheOptions,
        tree: &mut DlsmOptions,
        acknowledge: Option<AcknowledgeName>,
    ) -> anyhow::Result<()> {
        let level = acknowledge.unwrap_or_default();
        (cache.acknowledge, tree.acknowledge) = (level, level);
        self.set.iter().try_for_each(|change| {
            set_option(cache, tree, change)
                .or_else(|why| farleaf_command_line::usage(format!("--set {change}: {why}")))
        })?;
        let set = [("dex", cache.acknowledge), ("dlsm", tree.acknowledge)];
        match set.into_iter().find(|(_, now)| acknowledge.is_some() && *now != level) {
            Some((design, now)) => farleaf_command_line::usage(format!(
                "--acknowledge {level} and --set {design}.acknowledge={now} contradict each other"
            )),
            None => Ok(()),
        }
    }
}

/// Location of a running cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterLocation {
    /// Find the cluster in this folder of `farleaf cluster`
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["catalog", "token_file"], required_unless_present = "catalog")]
    dir: Option<PathBuf>,
    /// Use this catalog: HOST:PORT of an embedded one, or etcd:HOST:PORT,HOST:PORT
    #[arg(long, value_name = "CATALOG", requires = "token_file")]
    catalog: Option<CatalogAddress>,
    /// Read the cluster's token from this file, which only its owner can read
    #[arg(long, value_name = "FILE", requires = "catalog")]
    token_file: Option<PathBuf>,
    /// Use the cluster of this name
    #[arg(long, value_name = "NAME", default_value = "default")]
    cluster: String,
}

impl ClusterLocation {
    /// The location of a cluster of this name in a folder.
    fn of_folder(dir: &Path, cluster: &str) -> Self {
        let dir = Some(dir.to_owned());
        Self { dir, catalog: None, token_file: None, cluster: cluster.to_owned() }
    }

    /// The cluster's catalog and token.
    fn find(&self) -> anyhow::Result<(CatalogAddress, Token)> {
        let (address, token_file) = match (&self.dir, &self.catalog, &self.token_file) {
            (Some(dir), ..) => {
                let folder = LauncherFolder(dir.clone());
                // If the folder has no running cluster, report that the cluster does not serve.
                let running = folder.catalog().map_err(|error| match error {
                    ConfigError::File { .. } if dir.is_dir() => {
                        ProgramError::Failed(format!("no cluster runs in {}", dir.display()))
                    }
                    error => error.into(),
                });
                (running?, folder.token())
            }
            (None, Some(address), Some(token_file)) => (address.clone(), token_file.clone()),
            _ => return farleaf_command_line::usage("use --dir, or --catalog and --token-file"),
        };
        let token = read_token(&token_file)?;
        Ok((address, token))
    }

    /// The cluster's keys in the catalog.
    fn keys(&self) -> anyhow::Result<CatalogKeys> {
        let keys = CatalogKeys::new(&self.cluster);
        Ok(keys.map_err(|bad| ConfigError::Settings(format!("`{}`: {bad}", self.cluster)))?)
    }
}

/// Parses a term or a wait, in seconds.
fn duration(text: &str) -> Result<Duration, String> {
    farleaf_command_line::units::seconds(text).map(Duration::from_secs_f64)
}

/// Parses `on` or `off`.
fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

/// Parses a number of servers of one kind.
fn servers(text: &str) -> Result<u16, String> {
    farleaf_command_line::units::count(text)
        .ok()
        .and_then(|count| u16::try_from(count).ok())
        .filter(|count| *count <= 1024)
        .ok_or_else(|| "expected a number of servers from 0 to 1024".to_owned())
}

/// Parses an address of this machine, or the name of one, and a port.
fn address(text: &str) -> Result<SocketAddr, String> {
    let host: HostPort = text.parse()?;
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    host.local().map_err(|error| error.to_string())
}

/// The value of `--config` on the command line.
fn file_among(arguments: &[OsString]) -> Option<PathBuf> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if argument == "--config" {
            return rest.next().map(PathBuf::from);
        }
        if let Some(path) = argument.to_str().and_then(|text| text.strip_prefix("--config=")) {
            return Some(Path::new(path).to_owned());
        }
    }
    None
}

/// Inserts the flags of the settings file before those of the command line; the last occurrence of
/// a flag wins.
pub(crate) fn with_file(arguments: Vec<OsString>) -> Result<Vec<OsString>, ConfigError> {
    let Some(name) = arguments.get(1).and_then(|name| name.to_str()) else { return Ok(arguments) };
    let Some(path) = file_among(&arguments[1..]).filter(|_| WITH_FILES.contains(&name)) else {
        return Ok(arguments);
    };
    let command = crate::FarleafArguments::command();
    let command = command.find_subcommand(name).expect("these are commands");
    let flags: Vec<&str> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
    let said = flags_of_file(&path, &flags)?;
    Ok([&arguments[..2], &said, &arguments[2..]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn flags_win_over_the_file() {
        let path = std::env::temp_dir().join(format!("farleaf-{}-flags.toml", std::process::id()));
        std::fs::write(&path, "pool_bytes = \"64Mi\"\nnumber = 3\n").unwrap();
        let line =
            ["farleaf", "memory-server", "--number", "4", "--config", path.to_str().unwrap()];
        let words = |line: &[&str]| line.iter().map(OsString::from).collect::<Vec<_>>();
        let whole = with_file(words(&line)).unwrap();
        assert_eq!(whole[2..4], words(&["--number=3", "--pool-bytes=64Mi"])[..]);
        let required = ["--token-file", "t", "--catalog", "127.0.0.1:1", "--transport", "tcp"];
        let parsed =
            crate::FarleafArguments::try_parse_from([whole, words(&required)].concat()).unwrap();
        let crate::FarleafCommand::MemoryServer(server) = parsed.command else {
            panic!("another command")
        };
        assert_eq!((server.number, server.pool_bytes), (4, 64 << 20));
        assert_eq!(with_file(words(&["farleaf", "demo"])).unwrap().len(), 2);
        std::fs::remove_file(&path).unwrap();
    }
}
