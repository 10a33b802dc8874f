//! One connection's state, without its socket: bytes come in, commands go out to run, their replies
//! come back in any order, and bytes go out in the order of the commands.
//!
//! *Invariants*
//! - resp.N1. Replies leave in the order of their commands.
//! - resp.N2. Commands begin in their order, and of two that concern one key the second begins only
//!   when the first has its reply. A command on a range runs alone.
//! - resp.N3. Nothing is decoded while the replies of commands on
//!   [`RespLimits::running`](crate::RespLimits) keys are missing or wait for an earlier one, or
//!   while [`RespLimits::output_bytes`](crate::RespLimits) of replies wait for an earlier one or
//!   for the client. So a client that does not read is no longer read.
//! - resp.N4. LOADING and TRYAGAIN go only to a client that sends one command at a time. Clients
//!   repeat a whole pipeline when a command of it has such a reply, also what has been done of it.
//! - resp.N5. Before the password, only commands with the flag `no_auth` do something.
//!
//! *Thread safety*: none; each connection has its own.

use crate::command::{ConnectionCommand, KeyAccess, RespCommand, StoreCommand};
use crate::decode::{DecodedCommand, RespDecoder, SkippedCommand};
use crate::introspect;
use crate::reply::{RespReply, RespVersion};
use crate::shared::RespShared;
use crate::table::{self, CommandSpec};
use smallvec::SmallVec;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Names a command that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommandTicket(u64);

/// A command to run on the store.
#[derive(Debug)]
pub struct StartedCommand {
    /// For [`RespSession::complete`].
    pub ticket: CommandTicket,
    pub command: StoreCommand,
}

#[derive(Debug)]
struct PipelineSlot {
    /// Whether the command came alone.
    is_single: bool,
    version: RespVersion,
    /// Number of keys that the command concerns, or 1.
    weight: usize,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    Running {
        keys: SmallVec<[u64; 4]>,
    },
    /// Waits for those before it, and holds this many bytes.
    Ready {
        reply: RespReply,
        bytes: usize,
    },
}

/// A command of so many bytes arrives in one piece with the beginning of what is sent behind it.
const MAX_SINGLE_BYTES: usize = 1024;
/// How many wrong passwords a client may send.
const MAX_WRONG_PASSWORDS: u32 = 8;

/// The state of one connection.
#[derive(Debug)]
pub struct RespSession {
    shared: Arc<RespShared>,
    id: u64,
    decoder: RespDecoder,
    version: RespVersion,
    is_authenticated: bool,
    wrong_passwords: u32,
    /// The replies of commands from `first` on that have not left yet.
    slots: VecDeque<PipelineSlot>,
    first: u64,
    /// The weight of all slots.
    weight: usize,
    /// The bytes of replies in slots.
    ready_bytes: usize,
    running: usize,
    is_exclusive: bool,
    busy: BTreeSet<u64>,
    /// A command that waits for others to end.
    stalled: Option<(StoreCommand, KeyAccess)>,
    /// Whether more commands may be in the input.
    has_input: bool,
    output: Vec<u8>,
    /// Whether the client has ever sent something behind a command on the store before it had the
    /// reply.
    has_pipelined: bool,
    /// Whether the last command came alone.
    is_single: bool,
    /// Size of the last command.
    former_bytes: usize,
    /// How much of the output has left.
    written: usize,
    /// No further command is decoded; the connection ends after the replies.
    is_ending: bool,
}

impl Drop for RespSession {
    fn drop(&mut self) {
        self.shared.leave(self.id);
    }
}

impl RespSession {
    /// A session with a client at this address.
    pub fn new(shared: Arc<RespShared>, address: &str) -> Self {
        let is_authenticated = shared.config.password.is_none();
        Self {
            id: shared.enter(address),
            decoder: RespDecoder::new(shared.config.limits, is_authenticated),
            version: RespVersion::default(),
            is_authenticated,
            wrong_passwords: 0,
            slots: VecDeque::new(),
            first: 0,
            weight: 0,
            ready_bytes: 0,
            running: 0,
            is_exclusive: false,
            busy: BTreeSet::new(),
            stalled: None,
            has_input: false,
            output: Vec::new(),
            has_pipelined: false,
            is_single: false,
            former_bytes: 0,
            written: 0,
            is_ending: false,
            shared,
        }
    }

    /// Takes bytes of the client. Call it only while [`RespSession::wants_input`].
    pub fn receive(&mut self, bytes: &[u8]) {
        if !self.is_ending {
            self.decoder.feed(bytes);
            self.has_input = true;
        }
    }

    /// Whether it has decoded all that it has, and has room for more.
    pub fn wants_input(&self) -> bool {
        !self.is_ending && !self.has_input && self.stalled.is_none() && self.has_room()
    }

    fn has_room(&self) -> bool {
        let limits = &self.shared.config.limits;
        let waiting = self.output().len() + self.ready_bytes;
        self.weight < limits.running && waiting < limits.output_bytes
    }

    /// The next command to run. `None` until something is received, completed or written.
    pub fn start(&mut self) -> Option<StartedCommand> {
        loop {
            if let Some((command, access)) = self.stalled.take() {
                if !self.has_room() || !self.may_begin(&access) {
                    self.stalled = Some((command, access));
                    return None;
                }
                return Some(self.begin(command, access));
            }
            if self.is_ending || !self.has_input || !self.has_room() {
                return None;
            }
            match self.decoder.next_command() {
                Ok(None) => self.has_input = false,
                Ok(Some(command)) => self.take(command),
                Err(error) => {
                    self.reply(RespReply::error(format_args!("Protocol error: {error}")));
                    self.end_input();
                }
            }
        }
    }

    /// Takes no more commands. The connection ends after the replies of those that run.
    pub fn end_input(&mut self) {
        self.is_ending = true;
        self.has_input = false;
        self.stalled = None;
    }

    /// Whether the client ended within a command.
    pub fn is_within_command(&self) -> bool {
        !self.is_ending && self.decoder.is_within_command()
    }

    /// Gives the reply of a command that has run.
    ///
    /// # Panics
    /// If no command with this ticket runs.
    pub fn complete(&mut self, ticket: CommandTicket, reply: RespReply) {
        let place = ticket.0.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        self.has_pipelined |= self.slots.len() > 1 || self.decoder.undecoded_bytes() > 0;
        let slot = place.and_then(|place| self.slots.get_mut(place));
        let may_repeat = !self.has_pipelined && slot.as_ref().is_some_and(|slot| slot.is_single);
        let reply = if may_repeat { reply } else { reply.not_repeated() };
        // The first leaves at once.
        let bytes = if place == Some(0) { 0 } else { reply.held_bytes() };
        let ready = SlotState::Ready { reply, bytes };
        let state = slot.map(|slot| std::mem::replace(&mut slot.state, ready));
        let Some(SlotState::Running { keys }) = state else {
            panic!("no command runs with {ticket:?}");
        };
        for key in keys {
            self.busy.remove(&key);
        }
        self.ready_bytes += bytes;
        self.running -= 1;
        // What ends may have run beside the command on a range.
        self.is_exclusive &= self.running > 0;
        self.advance();
    }

    /// Number of commands that run.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Bytes for the client.
    pub fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// Says that the first bytes of the output have left.
    pub fn consume_output(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written >= self.output.len() {
            self.output.clear();
            self.written = 0;
            // A large reply does not stay for the rest of the connection.
            self.output.shrink_to(64 << 10);
        }
    }

    /// Whether the connection is to be closed now.
    pub fn is_over(&self) -> bool {
        self.is_ending && self.slots.is_empty() && self.output().is_empty()
    }

    /// Number of bytes that it holds for the client, besides those of commands that run.
    pub fn held_bytes(&self) -> usize {
        self.output.capacity() + self.ready_bytes + self.decoder.held_bytes()
    }

    fn may_begin(&self, access: &KeyAccess) -> bool {
        match access {
            KeyAccess::Free => true,
            KeyAccess::Exclusive => self.running == 0,
            KeyAccess::Keys(keys) => {
                !self.is_exclusive && keys.iter().all(|key| !self.busy.contains(key))
            }
        }
    }

    fn begin(&mut self, command: StoreCommand, access: KeyAccess) -> StartedCommand {
        let keys = match access {
            KeyAccess::Keys(keys) => keys,
            KeyAccess::Free => SmallVec::new(),
            KeyAccess::Exclusive => {
                self.is_exclusive = true;
                SmallVec::new()
            }
        };
        self.busy.extend(keys.iter().copied());
        let ticket = CommandTicket(self.first + self.slots.len() as u64);
        self.push(keys.len().max(1), SlotState::Running { keys });
        self.running += 1;
        StartedCommand { ticket, command }
    }

    /// Appends the reply of a command that does not run.
    fn reply(&mut self, reply: RespReply) {
        if self.slots.is_empty() {
            reply.encode(self.version, &mut self.output);
            self.first += 1;
        } else {
            let bytes = reply.held_bytes();
            self.ready_bytes += bytes;
            self.push(1, SlotState::Ready { reply, bytes });
        }
    }

    fn push(&mut self, weight: usize, state: SlotState) {
        self.weight += weight;
        let (version, is_single) = (self.version, self.is_single);
        self.slots.push_back(PipelineSlot { is_single, version, weight, state });
    }

    /// Moves replies to the output, up to the first that is missing.
    fn advance(&mut self) {
        while let Some(PipelineSlot { version, weight, state, .. }) = self.slots.front()
            && let SlotState::Ready { reply, bytes } = state
        {
            reply.encode(*version, &mut self.output);
            self.weight -= weight;
            self.ready_bytes -= bytes;
            self.slots.pop_front();
            self.first += 1;
        }
    }

    fn take(&mut self, command: DecodedCommand) {
        self.shared.count_command();
        let DecodedCommand { words, skipped } = command;
        let bytes = words.iter().map(Vec::len).fold(0, usize::saturating_add);
        let bytes = if skipped.is_some() { usize::MAX } else { bytes };
        // Clients send a large one by itself, and what belongs to the same pipeline behind it.
        self.is_single = bytes.max(self.former_bytes) <= MAX_SINGLE_BYTES;
        self.former_bytes = bytes;
        let name = words.first().map_or(&b""[..], Vec::as_slice);
        // A browser's request, which a page could send to a port of this host.
        if name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"HOST:") {
            self.end_input();
            return;
        }
        let spec = table::find(name);
        let is_free = |spec: &CommandSpec| spec.flags().any(|flag| flag == "no_auth");
        if !self.is_authenticated && !spec.is_some_and(is_free) {
            self.reply(RespReply::Error("NOAUTH Authentication required.".into()));
            return;
        }
        if let Some(skipped) = skipped {
            let limits = &self.shared.config.limits;
            let text = match skipped {
                SkippedCommand::Argument { bytes } => format!(
                    "an argument has {bytes} bytes, and can have at most {}: nothing was done",
                    limits.argument_bytes
                ),
                SkippedCommand::Whole => format!(
                    "the command has more than {} bytes: nothing was done",
                    limits.command_bytes
                ),
            };
            self.reply(RespReply::error(text));
            return;
        }
        let Some(spec) = spec else {
            self.reply(table::refusal(name));
            return;
        };
        match spec.parse(words) {
            Err(refusal) => self.reply(refusal),
            Ok(RespCommand::Reply(reply)) => self.reply(reply),
            Ok(RespCommand::Store(command)) => self.stall(command),
            Ok(RespCommand::OfIndex(index, command)) => {
                if self.shared.is_index(&index) {
                    self.stall(command);
                } else {
                    let known = &self.shared.config.index_name;
                    let index = index.escape_ascii().to_string();
                    let text = format!("no such index '{index:.64}': this cluster has '{known}'");
                    self.reply(RespReply::error(text));
                }
            }
            Ok(RespCommand::Connection(command)) => self.connection(spec, command),
        }
    }

    fn stall(&mut self, command: StoreCommand) {
        // What clients send when they connect is often a pipeline, but changes nothing.
        self.has_pipelined |= !self.slots.is_empty() || self.decoder.undecoded_bytes() > 0;
        self.is_single &= !self.has_pipelined;
        let access = command.access();
        self.stalled = Some((command, access));
    }

    fn connection(&mut self, spec: &'static CommandSpec, command: ConnectionCommand) {
        let (shared, id) = (Arc::clone(&self.shared), self.id);
        shared.change_client(id, |entry| entry.last_command = spec.name);
        let reply = match command {
            ConnectionCommand::Hello { version, password, name } => {
                self.hello(version, password, name)
            }
            ConnectionCommand::Auth { user, password } => match self.authenticate(&user, &password)
            {
                Ok(()) => RespReply::OK,
                Err(refusal) => refusal,
            },
            ConnectionCommand::ClientId => {
                RespReply::Integer(i64::try_from(id).unwrap_or(i64::MAX))
            }
            ConnectionCommand::ClientName(name) => {
                shared.change_client(id, |entry| entry.name = name);
                RespReply::OK
            }
            ConnectionCommand::ClientGetName => match shared.client(id).name {
                name if name.is_empty() => RespReply::Null,
                name => RespReply::Bulk(name),
            },
            ConnectionCommand::ClientLibrary { attribute, value } => {
                match attribute.to_ascii_lowercase().as_slice() {
                    b"lib-name" => shared.change_client(id, |entry| entry.library = value),
                    b"lib-ver" => shared.change_client(id, |entry| entry.library_version = value),
                    _ => {
                        self.reply(RespReply::error("unrecognized option of CLIENT SETINFO"));
                        return;
                    }
                }
                RespReply::OK
            }
            ConnectionCommand::ClientInfo => introspect::client_info(&shared, id),
            ConnectionCommand::ClientList => introspect::client_list(&shared),
            ConnectionCommand::Info(sections) => introspect::info(&shared, &sections),
            ConnectionCommand::ConfigGet(patterns) => introspect::config_get(&shared, &patterns),
            ConnectionCommand::CommandList => introspect::command_list(),
            ConnectionCommand::CommandCount => RespReply::count(table::COMMANDS.len()),
            ConnectionCommand::CommandInfo(names) => introspect::command_info(&names),
            ConnectionCommand::CommandDocs(names) => introspect::command_docs(&names),
            ConnectionCommand::CommandNames => introspect::command_names(),
            ConnectionCommand::IndexExists(name) => RespReply::flag(shared.is_index(&name)),
            ConnectionCommand::Reset => {
                self.version = RespVersion::default();
                self.set_authenticated(shared.config.password.is_none());
                shared.change_client(id, |entry| {
                    entry.name.clear();
                    entry.version = RespVersion::default();
                });
                RespReply::Simple("RESET")
            }
            ConnectionCommand::Quit => {
                self.reply(RespReply::OK);
                self.end_input();
                return;
            }
        };
        self.reply(reply);
        if self.wrong_passwords >= MAX_WRONG_PASSWORDS {
            self.end_input();
        }
    }

    fn set_authenticated(&mut self, is_authenticated: bool) {
        self.is_authenticated = is_authenticated;
        self.decoder.set_limits(self.shared.config.limits, is_authenticated);
    }

    fn authenticate(&mut self, user: &[u8], password: &[u8]) -> Result<(), RespReply> {
        let Some(expected) = &self.shared.config.password else {
            let text = "AUTH was called, but this server has no password";
            return Err(RespReply::error(text));
        };
        // Both are evaluated, so that time tells neither.
        if expected.is(password) & (user == b"default") {
            self.set_authenticated(true);
            self.wrong_passwords = 0;
            return Ok(());
        }
        self.wrong_passwords += 1;
        Err(RespReply::Error(
            "WRONGPASS invalid username-password pair or user is disabled.".into(),
        ))
    }

    /// Nothing of a HELLO happens if a part of it is refused.
    fn hello(
        &mut self,
        version: Option<RespVersion>,
        password: Option<(Vec<u8>, Vec<u8>)>,
        name: Option<Vec<u8>>,
    ) -> RespReply {
        if let Some((user, password)) = password {
            if let Err(refusal) = self.authenticate(&user, &password) {
                return refusal;
            }
        } else if !self.is_authenticated {
            let text =
                "NOAUTH HELLO needs AUTH <user> <password> before a client has authenticated";
            return RespReply::Error(text.into());
        }
        self.version = version.unwrap_or(self.version);
        let version = self.version;
        self.shared.change_client(self.id, |entry| {
            entry.version = version;
            if let Some(name) = name {
                entry.name = name;
            }
        });
        introspect::hello(self.id, version)
    }

    /// Whether the client has proved the password, or needs none.
    pub fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// Number of wrong passwords since the last right one.
    pub fn wrong_passwords(&self) -> u32 {
        self.wrong_passwords
    }
}
