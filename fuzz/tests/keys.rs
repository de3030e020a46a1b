//! Routing keys of strangers, as `smg-decide` reads them.

use smg_decide::keys::{MAX_KEY_BYTES, Places, Treatment, derive, headers, rid};

#[test]
fn keys() {
    let target = |input: &[u8]| {
        // Lines are a rid, the listed headers, and the gateway's own.
        let mut lines = input.split(|byte| *byte == b'\n');
        let first = lines.next().and_then(|line| std::str::from_utf8(line).ok());
        let listed: Vec<_> = lines.collect();
        if let Some(rid) = first {
            assert!(rid.starts_with(rid::strip(rid)));
            if let Some(key) = rid::key(rid) {
                assert!(!key.is_empty() && key.len() <= MAX_KEY_BYTES && rid.starts_with(key));
            }
        }
        let values = || listed.iter().map(|line| Some(*line));
        if let Some(valid) = headers::first_valid(values()) {
            assert!(!valid.is_empty() && valid.len() <= MAX_KEY_BYTES);
        }
        let own = listed.last().copied();
        assert!(own.and_then(headers::ascii).is_none_or(str::is_ascii));
        for how in [Treatment::Ignore, Treatment::Hash, Treatment::HashOwn, Treatment::Pin] {
            let key = derive(how, Places { rid: first, listed: values(), own, opening: None });
            assert!(key.is_none_or(|key| !key.text.is_empty() && key.text.len() <= MAX_KEY_BYTES));
        }
        let places = Places { rid: first, listed: values(), own, opening: None };
        assert!(derive(Treatment::PinManual, places).is_none_or(|key| !key.text.is_empty()));
    };
    fuzz::run("keys", 4000, target).unwrap();
}
