//! The beginning of a JSON list, so that a body of many tiny items does not become many times its
//! size in memory.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

/// The first items of a list, at most so many. The rest has to be JSON, whatever it says.
pub(crate) struct First<T, const MOST: usize>(pub(crate) Vec<T>);

struct Reader<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for First<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Reader::<T, MOST>(PhantomData)).map(Self)
    }
}

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Reader<T, MOST> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut items = Vec::new();
        while items.len() < MOST {
            let Some(item) = list.next_element()? else { return Ok(items) };
            items.push(item);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_to_its_end_and_kept_to_its_bound() {
        let first = |raw: &str| serde_json::from_str::<First<u32, 2>>(raw).ok().map(|it| it.0);
        for (raw, kept) in [
            ("[]", Some(vec![])),
            ("[1]", Some(vec![1])),
            ("[1,2]", Some(vec![1, 2])),
            (r#"[1,2,3,"a",{}]"#, Some(vec![1, 2])),
            (r#"[1,"a"]"#, None),
            ("[1,2,3", None),
            ("{}", None),
        ] {
            assert_eq!(first(raw), kept, "{raw}");
        }
    }
}
