//! Random requests. Each carries what the document makes of it, known by construction and not by
//! taking the sent text apart again.

use smg_decide::fleet::WorkerId;

use super::setting::{MODELS, Setting, one_of};
use crate::dice::Dice;

/// The header `manual` reads, and the default of `--routing-key-headers`.
pub(super) const OWN: &str = "x-smg-routing-key";
/// Another header that may be listed.
pub(super) const CONVERSATION: &str = "x-conversation";

/// Longest key, and longest header value that names one (000, "Deriving the Routing Key").
const MAX_BYTES: usize = 128;

/// A text as sent, and the key that is left once its lineage is taken off, if it has one at all.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub(super) sent: Vec<u8>,
    base: Option<String>,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) model: usize,
    pub(super) rid: Option<Text>,
    headers: [(&'static str, Option<Text>); 2],
    /// `X-SMG-Target-Worker`
    pub(super) target: Option<usize>,
    pub(super) prompt: String,
    pub(super) tokens: Option<u32>,
    /// Workers it has already failed on.
    pub(super) excluded: Vec<WorkerId>,
    /// The last of them is busy, not broken: its pin stays.
    pub(super) keep_pin: bool,
}

impl Request {
    pub(super) fn draw(setting: &Setting, dice: &mut Dice) -> Self {
        let rid = match dice.below(10) {
            0..5 => None,
            // A JSON string is UTF-8 whatever else it is.
            5 => Some(useless(dice.below(2))),
            _ => Some(conversation(setting, dice)),
        };
        let mut header = |name| match dice.below(10) {
            0..4 => (name, None),
            4 => (name, Some(useless(dice.below(4)))),
            _ => (name, Some(conversation(setting, dice))),
        };
        let headers = [header(OWN), header(CONVERSATION)];
        let prompt = format!("you are helpful {}", "word ".repeat(dice.below(60)));
        Self {
            model: dice.below(MODELS),
            rid,
            headers,
            target: (dice.below(20) == 0).then(|| dice.below(6)),
            tokens: one_of(dice, &[None, u32::try_from(prompt.len() / 4).ok()]),
            prompt,
            excluded: Vec::new(),
            keep_pin: false,
        }
    }

    /// A header's value.
    pub(super) fn header(&self, name: &str) -> Option<&Text> {
        self.headers.iter().find(|(own, _)| *own == name)?.1.as_ref()
    }

    /// 000, "Body `rid` Lineage": without its suffixes, unless that is longer than 128 bytes.
    pub(super) fn key_of_rid(&self) -> Option<String> {
        self.rid.as_ref()?.base.clone()
    }

    /// 000, "Routing-Key Headers": the first listed one that is not empty, UTF-8 and at most 128
    /// bytes; `strip` takes its lineage off.
    pub(super) fn key_of_headers(&self, listed: &[&str], strip: bool) -> Option<String> {
        listed.iter().find_map(|name| {
            let text = self.header(name)?;
            let base = text.base.as_ref().filter(|_| text.sent.len() <= MAX_BYTES)?;
            if strip { Some(base.clone()) } else { String::from_utf8(text.sent.clone()).ok() }
        })
    }

    /// 000, the warning there: `manual` wants a non-empty ASCII value of any length.
    pub(super) fn key_for_manual(&self) -> Option<String> {
        let sent = &self.header(OWN)?.sent;
        let valid = !sent.is_empty() && sent.is_ascii();
        String::from_utf8(sent.clone()).ok().filter(|_| valid)
    }
}

/// A turn of one of the conversations, perhaps a retry of it. Half of all turns are of the first.
fn conversation(setting: &Setting, dice: &mut Dice) -> Text {
    let n = dice.below(2) * dice.below(setting.conversations);
    let (turn, retry) = (1 + dice.below(2), 1 + dice.below(2));
    let suffix = match dice.below(4) {
        0 => format!("_t{turn}"),
        1 => format!("_r{retry}"),
        2 => format!("_t{turn}_r{retry}"),
        _ => String::new(),
    };
    let (base, suffix) = match n % 8 {
        // Nothing would be left of it, so all of it is the key.
        3 => (format!("_t{n}"), String::new()),
        // As long as a key may be.
        4 => (format!("{n:x>MAX_BYTES$}"), suffix),
        // Only what is last comes off: `conv_r1_t2` is `conv_r1`.
        5 => (format!("c{n}_r1"), format!("_t{turn}")),
        6 => (format!("clé {n}"), suffix),
        7 => (format!("c{n}_T2"), suffix),
        _ => (format!("c{n}"), suffix),
    };
    Text { sent: format!("{base}{suffix}").into_bytes(), base: Some(base) }
}

/// A text that names nothing: too long, empty, not UTF-8.
fn useless(which: usize) -> Text {
    let sent = match which {
        0 => vec![b'x'; MAX_BYTES + 1],
        1 => Vec::new(),
        2 => b"\xc3\x28".to_vec(),
        _ => b"c0\x80".to_vec(),
    };
    Text { sent, base: None }
}
