//! Whose contract a model's name stands for.

/// How names of MiniMax's models start.
const MINIMAX: [&str; 2] = ["minimax", "abab"];

/// How names of other vendors' models start, as far as a segment of one says whose model it is.
/// Families, not publishers: who quantizes and hosts models of others (`nvidia/MiniMax-M2`) selects
/// nothing. Names so short that they could start any word are taken with their hyphen.
const OTHERS: [&str; 26] = [
    "chatglm",
    "chatgpt",
    "claude",
    "codestral",
    "command-",
    "deepseek",
    "doubao",
    "ernie",
    "gemini",
    "gemma",
    "glm-",
    "gpt-",
    "granite",
    "grok",
    "hunyuan",
    "internlm",
    "kimi",
    "llama",
    "meta-llama",
    "ministral",
    "mistral",
    "mixtral",
    "moonshot",
    "nemotron",
    "qwen",
    "qwq",
];

/// Whether streams of this model are re-sliced: the first segment that says anything says MiniMax.
/// It is the client's name that counts, before aliases (001).
#[must_use]
pub fn selects(model: &str) -> bool {
    let starts = |segment: &str, names: &[&str]| {
        names.iter().any(|name| {
            segment.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
        })
    };
    model
        .split('/')
        .find_map(|segment| match starts(segment, &MINIMAX) {
            true => Some(true),
            false => starts(segment, &OTHERS).then_some(false),
        })
        .unwrap_or(false)
}
