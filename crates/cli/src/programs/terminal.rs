//! The terminal while a program has it for itself, and that it is given back as it was.
//!
//! *Invariants*: what a value here has changed is changed back when it is dropped, also by a panic.

use rustix::stdio::stdin;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use std::io::{self, Write};

/// How the terminal of stdin was set.
#[derive(Clone, Debug)]
pub(crate) struct Modes(Termios);

impl Modes {
    /// How it is set now; `None` if stdin is no terminal.
    pub(crate) fn now() -> Option<Self> {
        tcgetattr(stdin()).ok().map(Self)
    }

    /// Sets it so again.
    pub(crate) fn restore(&self) {
        // A terminal that has gone needs nothing.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

/// Keys come one by one, without being shown, as long as this lives; Ctrl-C stays a signal.
#[derive(Debug)]
pub(crate) struct KeysAlone(Modes);

impl KeysAlone {
    /// `None` if stdin is no terminal.
    pub(crate) fn begin() -> Option<Self> {
        let before = Modes::now()?;
        let mut modes = before.0.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // Stopped with Ctrl-Z, it would leave its picture and these modes to the shell.
        modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
        tcsetattr(stdin(), OptionalActions::Now, &modes).ok()?;
        Some(Self(before))
    }
}

impl Drop for KeysAlone {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// The whole screen of stdout: what was on it comes back in the end.
#[derive(Debug)]
pub(crate) struct Screen;

impl Screen {
    /// Takes it.
    pub(crate) fn begin() -> io::Result<Self> {
        let screen = Self;
        let mut out = io::stdout().lock();
        out.write_all(b"\x1b[?1049h\x1b[?25l\x1b[2J")?;
        out.flush()?;
        Ok(screen)
    }

    /// Shows these lines instead of those before, as far as there is room.
    pub(crate) fn show(&self, text: &str) -> io::Result<()> {
        let size = tcgetwinsize(rustix::stdio::stdout());
        let (rows, columns) = size.map_or((0, 0), |size| (size.ws_row, size.ws_col));
        let mut out = io::stdout().lock();
        out.write_all(picture(text, rows, columns).as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = io::stdout().lock();
        // A closed terminal needs no cleaning up.
        let _ = out.write_all(b"\x1b[?25h\x1b[?1049l").and_then(|()| out.flush());
    }
}

/// The text from the upper left corner on; 0 rows or columns stand for a size that the terminal
/// does not tell.
fn picture(text: &str, rows: u16, columns: u16) -> String {
    let bound = |size: u16, otherwise: usize| match size {
        0 => otherwise,
        size => usize::from(size),
    };
    let mut picture = "\x1b[H".to_owned();
    for (place, line) in text.lines().take(bound(rows, 24)).enumerate() {
        if place > 0 {
            picture.push_str("\r\n");
        }
        let visible = line.chars().filter(|symbol| !symbol.is_control());
        picture.extend(visible.take(bound(columns, 80)));
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
