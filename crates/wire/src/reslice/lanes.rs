//! Text that is held back, a lane for each field, and where it is cut.

/// As much text makes a slice.
const ENOUGH: usize = 80;
/// A slice is not longer.
const LONGEST: usize = 160;
/// A cut leaves nothing, or as much.
const SHORTEST_TAIL: usize = 5;
/// Lanes that are held at once; tool calls beyond make all of them go out.
const MOST: usize = 64;

/// Where text belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// A text field of the delta, by name.
    Text(&'static str),
    /// The arguments of the tool call with this index, as written.
    Arguments(Box<str>),
}

/// A piece of text on its way out.
#[derive(Clone, Copy)]
pub(super) struct Slice<'a> {
    pub(super) field: &'a Field,
    pub(super) text: &'a str,
}

#[derive(Debug)]
struct Lane {
    field: Field,
    text: String,
    chars: usize,
}

/// The lanes that hold text, in the order in which they began to; never as much as [`ENOUGH`].
#[derive(Debug, Default)]
pub(super) struct Lanes(Vec<Lane>);

impl Lanes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes text, and lets slices out once there is enough. Lanes that have waited longer go first,
    /// so that no answer overtakes the reasoning before it.
    pub(super) fn push(&mut self, field: Field, text: &str, mut emit: impl FnMut(Slice<'_>)) {
        if text.is_empty() {
            return;
        }
        let known = self.0.iter().position(|lane| lane.field == field);
        if known.is_none() && self.0.len() >= MOST {
            self.flush(&mut emit);
        }
        let at = known.unwrap_or_else(|| {
            self.0.push(Lane { field, text: String::new(), chars: 0 });
            self.0.len() - 1
        });
        let Some(lane) = self.0.get_mut(at) else { return };
        lane.text.push_str(text);
        lane.chars += text.chars().count();
        if lane.chars < ENOUGH {
            return;
        }
        let mut due = self.0.drain(..=at);
        let full = due.next_back();
        due.for_each(|lane| emit(lane.slice()));
        // What is left of it came later than what the others hold.
        self.0.extend(full.and_then(|lane| lane.cut(emit)));
    }

    /// Lets everything out.
    pub(super) fn flush(&mut self, mut emit: impl FnMut(Slice<'_>)) {
        self.0.drain(..).for_each(|lane| emit(lane.slice()));
    }
}

impl Lane {
    fn slice(&self) -> Slice<'_> {
        Slice { field: &self.field, text: &self.text }
    }

    /// Cuts slices off while there is enough; what is left stays.
    fn cut(mut self, mut emit: impl FnMut(Slice<'_>)) -> Option<Self> {
        let mut rest = self.text.as_str();
        while self.chars >= ENOUGH {
            let length = first_cut(self.chars);
            let at = rest.char_indices().nth(length).map_or(rest.len(), |(at, _)| at);
            let (text, behind) = rest.split_at_checked(at)?;
            emit(Slice { field: &self.field, text });
            rest = behind;
            self.chars -= length;
        }
        self.text = rest.to_owned();
        (!self.text.is_empty()).then_some(self)
    }
}

/// How many of so many characters the first slice takes.
fn first_cut(chars: usize) -> usize {
    match chars.saturating_sub(LONGEST) {
        0 => chars,
        tail if tail < SHORTEST_TAIL => chars - SHORTEST_TAIL,
        _ => LONGEST,
    }
}
