//! Bodies in chunks (RFC 9112, 7.1).

/// Appends a chunk of this data; the last chunk if there is none.
pub fn write(data: &[u8], out: &mut Vec<u8>) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    out.reserve(data.len() + 20);
    let digits = (usize::BITS - data.len().leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        let digit = (data.len() >> (4 * digit)) & 15;
        out.extend(DIGITS.get(digit));
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Most bytes of extensions in one body, and of its trailers: nobody reads them.
const MAX_IGNORED: usize = 16 * 1024;

/// Reads a body in chunks, however it is cut.
#[derive(Clone, Copy, Debug, Default)]
pub struct Decoder {
    state: State,
    /// What is left of the chunk, or its size as far as it is read.
    left: u64,
    ignored: usize,
}

/// What comes next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The first digit of a size.
    #[default]
    Size,
    /// Another digit, or its end.
    Digit,
    /// Blanks between a size and its end.
    Blank,
    Extension,
    /// The LF of a size.
    SizeLf,
    Data,
    DataCr,
    DataLf,
    /// The first byte of a trailer, or the end.
    Trailers,
    Trailer,
    TrailerLf,
    EndLf,
    Over,
}

/// Something that is no chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl Decoder {
    /// Takes the next bytes, appends what they carry, and tells how many were part of the body: all
    /// of them unless it is over.
    ///
    /// # Errors
    /// When this is no body in chunks. Where one reader is lenient another is not, so that nothing
    /// but CR LF ends a line.
    pub fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Malformed> {
        let mut at = 0;
        while self.state != State::Over {
            let Some(rest @ [byte, ..]) = bytes.get(at..) else { break };
            if self.state == State::Data {
                let take = usize::try_from(self.left).map_or(rest.len(), |n| n.min(rest.len()));
                out.extend_from_slice(rest.get(..take).unwrap_or_default());
                self.left -= take as u64;
                at += take;
                if self.left == 0 {
                    self.state = State::DataCr;
                }
                continue;
            }
            self.state = self.step(*byte)?;
            at += 1;
        }
        Ok(at)
    }

    /// Whether the last chunk and its trailers have come.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    fn step(&mut self, byte: u8) -> Result<State, Malformed> {
        Ok(match (self.state, byte) {
            (State::Size | State::Digit, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.digit(byte)?;
                State::Digit
            }
            (State::Digit | State::Blank, b' ' | b'\t') => self.ignore(State::Blank)?,
            (State::Digit | State::Blank, b';') => State::Extension,
            (State::Digit | State::Blank | State::Extension, b'\r') => State::SizeLf,
            (State::Extension, 1..) if byte != b'\n' => self.ignore(State::Extension)?,
            (State::SizeLf, b'\n') if self.left == 0 => State::Trailers,
            (State::SizeLf, b'\n') => State::Data,
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::Size,
            (State::Trailers, b'\r') => State::EndLf,
            (State::Trailer, b'\r') => State::TrailerLf,
            (State::Trailers | State::Trailer, 1..) if byte != b'\n' => {
                self.ignore(State::Trailer)?
            }
            (State::TrailerLf, b'\n') => State::Trailers,
            (State::EndLf, b'\n') => State::Over,
            _ => return Err(Malformed),
        })
    }

    fn digit(&mut self, byte: u8) -> Result<(), Malformed> {
        let digit = char::from(byte).to_digit(16).map_or(0, u64::from);
        // A chunk has ended before the next size begins, and left nothing.
        let size = self.left.checked_mul(16).and_then(|size| size.checked_add(digit));
        self.left = size.ok_or(Malformed)?;
        Ok(())
    }

    fn ignore(&mut self, next: State) -> Result<State, Malformed> {
        self.ignored += 1;
        if self.ignored > MAX_IGNORED { Err(Malformed) } else { Ok(next) }
    }
}

#[cfg(test)]
mod tests;
