//! Terminal modes of a program, and how they are restored.
//!
//! *Invariants*: dropping a value of this module, even during a panic, undoes the changes that it
//! made.

use rustix::stdio::stdin;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{self, Write};

/// Saved modes of stdin's terminal.
#[derive(Clone, Debug)]
pub(crate) struct TerminalModes(Termios);

impl TerminalModes {
    /// The current modes; `None` if stdin is not a terminal.
    pub(crate) fn now() -> Option<Self> {
        tcgetattr(stdin()).ok().map(Self)
    }

    /// Restores the saved modes.
    pub(crate) fn restore(&self) {
        // Nothing to do if the terminal is gone.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

/// Delivers single keys, without echo, while this value lives. Ctrl-C still raises a signal.
#[derive(Debug)]
pub(crate) struct SingleKeyMode(TerminalModes);

impl SingleKeyMode {
    /// `None` if stdin is not a terminal.
    pub(crate) fn begin() -> Option<Self> {
        let before = TerminalModes::now()?;
        let mut modes = before.0.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // Disable Ctrl-Z: a stopped program would leave its screen and these modes to the shell.
        modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
        tcsetattr(stdin(), OptionalActions::Now, &modes).ok()?;
        Some(Self(before))
    }
}

impl Drop for SingleKeyMode {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// The alternate screen of stdout; dropping it restores the previous content.
#[derive(Debug)]
pub(crate) struct AlternateScreen;

impl AlternateScreen {
    /// Switches to the alternate screen.
    pub(crate) fn begin() -> io::Result<Self> {
        let screen = Self;
        let mut out = io::stdout().lock();
        out.write_all(b"\x1b[?1049h\x1b[?25l\x1b[2J")?;
        out.flush()?;
        Ok(screen)
    }

    /// The number of columns.
    pub(crate) fn columns(&self) -> usize {
        let size = tcgetwinsize(rustix::stdio::stdout());
        bound(size.map_or(0, |size| size.ws_col), COLUMNS)
    }

    /// Replaces the content of the screen with as many of these lines as fit.
    pub(crate) fn show(&self, text: &str) -> io::Result<()> {
        let size = tcgetwinsize(rustix::stdio::stdout());
        let (rows, columns) = size.map_or((0, 0), |size| (size.ws_row, size.ws_col));
        let mut out = io::stdout().lock();
        out.write_all(picture(text, rows, columns).as_bytes())?;
        out.flush()
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        // A closed terminal needs no cleanup.
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
}

/// The size of a terminal that does not report it.
const ROWS: usize = 24;
const COLUMNS: usize = 80;

fn bound(size: u16, otherwise: usize) -> usize {
    match size {
        0 => otherwise,
        size => usize::from(size),
    }
}

/// Clips the text to the screen; 0 rows or columns mean that the terminal does not report its size.
fn picture(text: &str, rows: u16, columns: u16) -> String {
    let mut picture = "\x1b[H".to_owned();
    for (place, line) in text.lines().take(bound(rows, ROWS)).enumerate() {
        if place > 0 {
            picture.push_str("\r\n");
        }
        let visible = line.chars().filter(|symbol| !symbol.is_control());
        picture.extend(visible.take(bound(columns, COLUMNS)));
        picture.push_str("\x1b[K");
    }
    picture.push_str("\x1b[J");
    picture
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_fits_the_screen() {
        assert_eq!(picture("ab\nc\x1bd\n\n", 0, 0), "\x1b[Hab\x1b[K\r\ncd\x1b[K\r\n\x1b[K\x1b[J");
        assert_eq!(picture("abc\nd\ne", 2, 2), "\x1b[Hab\x1b[K\r\nd\x1b[K\x1b[J");
        assert_eq!(picture(&"x\n".repeat(99), 0, 9).matches('x').count(), 24);
    }
}
