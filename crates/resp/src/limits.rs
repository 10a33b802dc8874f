//! The bounds of one session.
//!
//! *Thread safety*: plain values.

/// What one connection may make the server hold. Every buffer of a session has its bound here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RespLimits {
    /// Maximum length of one argument that a command gets. A longer one is skipped as it arrives,
    /// and the command is answered with an error.
    pub argument_bytes: usize,
    /// Maximum length that a client may announce for an argument; a longer one ends the session.
    pub announced_bytes: usize,
    /// Maximum number of arguments of a command.
    pub arguments: usize,
    /// Maximum size of a command with all its arguments; a larger one is skipped.
    pub command_bytes: usize,
    /// Maximum length of an inline command, and of the line before an argument.
    pub line_bytes: usize,
    /// No further command begins while those whose replies have not left concern this many keys.
    pub running: usize,
    /// No further command begins while this many bytes of replies wait for an earlier reply, or for
    /// the client to read them.
    pub output_bytes: usize,
    /// Maximum size of one reply; a command that would exceed it is answered with an error.
    pub reply_bytes: usize,
}

impl Default for RespLimits {
    fn default() -> Self {
        Self {
            argument_bytes: 1 << 20,
            announced_bytes: 512 << 20,
            arguments: 1 << 20,
            command_bytes: 16 << 20,
            line_bytes: 64 << 10,
            running: 256,
            output_bytes: 1 << 20,
            reply_bytes: 32 << 20,
        }
    }
}

impl RespLimits {
    /// The bounds before a client has proved its password: enough for HELLO and AUTH.
    #[must_use]
    pub fn unauthenticated(self) -> Self {
        Self {
            argument_bytes: self.argument_bytes.min(4 << 10),
            announced_bytes: self.announced_bytes.min(16 << 10),
            arguments: self.arguments.min(10),
            command_bytes: self.command_bytes.min(64 << 10),
            ..self
        }
    }
}
