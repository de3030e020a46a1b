//! The route table: every path the gateway answers, and what it must know of each.

use http::Method;

/// A path the gateway answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/messages`
    Messages,
    /// `/generate`
    Generate,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/classify`
    Classify,
    /// `/rerank`
    Rerank,
    /// `/v1/rerank`
    V1Rerank,
    /// `/v1/responses`
    Responses,
    /// `/v1/responses/{response_id}`
    Response,
    /// `/v1/responses/{response_id}/cancel`
    ResponseCancel,
    /// `/v1/responses/{response_id}/input_items`
    ResponseItems,
    /// `/v1/messages/count_tokens`
    CountTokens,
    /// `/v1/tokenize`
    Tokenize,
    /// `/v1/detokenize`
    Detokenize,
    /// `/v1/audio/transcriptions`
    Transcriptions,
    /// `/v1/models`
    Models,
    /// `/workers`
    Workers,
    /// `/workers/{worker_id}`
    Worker,
    /// `/get_model_info`
    ModelInfo,
    /// `/get_server_info`
    ServerInfo,
    /// `/get_loads`
    Loads,
    /// `/flush_cache`
    FlushCache,
    /// `/health_generate`
    HealthGenerate,
    /// `/health`
    Health,
    /// `/liveness`
    Liveness,
    /// `/readiness`
    Readiness,
    /// Anything else: answered 404, counted under one label.
    Other,
}

/// How answers and errors look on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// OpenAI chat and completions: errors and stream errors as `{"error": {…}}`.
    OpenAi,
    /// Anthropic messages: `{"type": "error", …}`, stream errors as `event: error`.
    Anthropic,
    /// OpenAI responses: errors as OpenAI's, stream errors as `response.failed`.
    Responses,
}

/// An inference route: what is forwarded to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inference {
    /// How errors look.
    pub dialect: Dialect,
    /// What a request brings.
    pub carries: Carries,
    /// Whether any worker of the model answers it alike and next to nothing is computed: then
    /// neither key nor policy is asked, so that no pin and no cycle moves for it.
    pub anywhere: bool,
    /// The `endpoint` label of the router metrics.
    pub endpoint: &'static str,
    /// Whether the body may stream to the worker (001, "How the Router Decides").
    pub streams: bool,
    /// Where a routing key can stand in the body.
    pub rid: Rid,
    /// Top-level fields of which a request must have one; none when empty.
    pub required: &'static [&'static str],
    /// Where its prompt stands.
    pub prompt: Prompt,
    /// The path at the worker, where it differs.
    pub upstream_path: Option<&'static str>,
    /// The path at a vLLM engine, where that differs.
    pub vllm_path: Option<&'static str>,
    /// What a generated request id starts with.
    pub id_prefix: &'static str,
}

impl Inference {
    /// Whether an answer's usage is of a prompt that was read for it.
    #[must_use]
    pub fn reads_prompts(&self) -> bool {
        !self.anywhere && self.carries != Carries::ResponseId
    }
}

/// What a request brings that tells where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carries {
    /// A JSON object, which may name its model.
    Json,
    /// A multipart form, which may too.
    Form,
    /// The id of a response in its path: it belongs to the worker that made that.
    ResponseId,
}

/// Where a route's body carries its `rid` (000, "Body `rid` Lineage").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rid {
    /// A string at the top level.
    Text,
    /// The first of a list, or a string.
    First,
    /// Nowhere: such requests can be keyed by a header only.
    None,
}

/// Where a route's body carries what the engine has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// `messages`, and before them `system`.
    Messages,
    /// One field: text, a list of texts, or token ids.
    Field(&'static str),
    /// `text`, else the token ids of `input_ids`.
    TextOrIds,
}

/// One row of the table.
#[derive(Debug)]
pub struct Row {
    /// The route.
    pub route: Route,
    /// The path, also the `path` label of the HTTP metrics. A segment in braces stands for any one
    /// segment.
    pub path: &'static str,
    /// The methods it answers.
    pub methods: &'static [Method],
    /// What to know when it is forwarded to a worker.
    pub inference: Option<Inference>,
}

const CHAT: Inference = Inference {
    dialect: Dialect::OpenAi,
    carries: Carries::Json,
    anywhere: false,
    endpoint: "chat",
    streams: true,
    rid: Rid::Text,
    required: &["messages"],
    prompt: Prompt::Messages,
    upstream_path: None,
    vllm_path: None,
    id_prefix: "chatcmpl-",
};
const COMPLETIONS: Inference = Inference {
    endpoint: "completions",
    required: &["prompt"],
    prompt: Prompt::Field("prompt"),
    id_prefix: "cmpl-",
    ..CHAT
};
const MESSAGES: Inference =
    Inference { dialect: Dialect::Anthropic, endpoint: "messages", id_prefix: "msg-", ..CHAT };
const GENERATE: Inference = Inference {
    endpoint: "generate",
    required: &["text", "input_ids", "input_embeds"],
    prompt: Prompt::TextOrIds,
    id_prefix: "gnt-",
    ..CHAT
};
const EMBEDDINGS: Inference = Inference {
    endpoint: "embeddings",
    required: &["input"],
    prompt: Prompt::Field("input"),
    id_prefix: "req-",
    ..CHAT
};
const CLASSIFY: Inference =
    Inference { endpoint: "classify", required: &["input", "text"], ..EMBEDDINGS };
const RERANK: Inference = Inference {
    endpoint: "rerank",
    streams: false,
    rid: Rid::First,
    required: &["query"],
    prompt: Prompt::Field("query"),
    upstream_path: Some("/v1/rerank"),
    ..EMBEDDINGS
};
const RESPONSES: Inference = Inference {
    dialect: Dialect::Responses,
    endpoint: "responses",
    streams: false,
    rid: Rid::None,
    required: &[],
    prompt: Prompt::Field("input"),
    id_prefix: "resp-",
    ..CHAT
};

const STORED: Inference = Inference { carries: Carries::ResponseId, ..RESPONSES };
// The endpoint label of these is the documents' `other`.
const COUNT_TOKENS: Inference =
    Inference { anywhere: true, endpoint: "other", streams: false, rid: Rid::None, ..MESSAGES };
const TOKENIZE: Inference = Inference {
    anywhere: true,
    endpoint: "other",
    streams: false,
    rid: Rid::None,
    required: &[],
    vllm_path: Some("/tokenize"),
    ..EMBEDDINGS
};
const DETOKENIZE: Inference = Inference { vllm_path: Some("/detokenize"), ..TOKENIZE };
const TRANSCRIPTIONS: Inference = Inference {
    carries: Carries::Form,
    endpoint: "other",
    streams: false,
    rid: Rid::None,
    required: &[],
    ..EMBEDDINGS
};

const GET: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];
const STORED_METHODS: &[Method] = &[Method::GET, Method::DELETE];
const FLUSH: &[Method] = &[Method::POST, Method::GET];
const WORKERS: &[Method] = &[Method::GET, Method::HEAD, Method::POST];
const WORKER: &[Method] = &[Method::GET, Method::HEAD, Method::PUT, Method::PATCH, Method::DELETE];

const fn served(
    route: Route,
    path: &'static str,
    methods: &'static [Method],
    inference: Option<Inference>,
) -> Row {
    Row { route, path, methods, inference }
}

static ROWS: [Row; Route::COUNT] = [
    served(Route::Chat, "/v1/chat/completions", POST, Some(CHAT)),
    served(Route::Completions, "/v1/completions", POST, Some(COMPLETIONS)),
    served(Route::Messages, "/v1/messages", POST, Some(MESSAGES)),
    served(Route::Generate, "/generate", POST, Some(GENERATE)),
    served(Route::Embeddings, "/v1/embeddings", POST, Some(EMBEDDINGS)),
    served(Route::Classify, "/v1/classify", POST, Some(CLASSIFY)),
    served(Route::Rerank, "/rerank", POST, Some(RERANK)),
    served(Route::V1Rerank, "/v1/rerank", POST, Some(RERANK)),
    served(Route::Responses, "/v1/responses", POST, Some(RESPONSES)),
    served(Route::Response, "/v1/responses/{response_id}", STORED_METHODS, Some(STORED)),
    served(Route::ResponseCancel, "/v1/responses/{response_id}/cancel", POST, Some(STORED)),
    served(Route::ResponseItems, "/v1/responses/{response_id}/input_items", GET, Some(STORED)),
    served(Route::CountTokens, "/v1/messages/count_tokens", POST, Some(COUNT_TOKENS)),
    served(Route::Tokenize, "/v1/tokenize", POST, Some(TOKENIZE)),
    served(Route::Detokenize, "/v1/detokenize", POST, Some(DETOKENIZE)),
    served(Route::Transcriptions, "/v1/audio/transcriptions", POST, Some(TRANSCRIPTIONS)),
    served(Route::Models, "/v1/models", GET, None),
    served(Route::Workers, "/workers", WORKERS, None),
    served(Route::Worker, "/workers/{worker_id}", WORKER, None),
    served(Route::ModelInfo, "/get_model_info", GET, None),
    served(Route::ServerInfo, "/get_server_info", GET, None),
    served(Route::Loads, "/get_loads", GET, None),
    served(Route::FlushCache, "/flush_cache", FLUSH, None),
    served(Route::HealthGenerate, "/health_generate", GET, None),
    served(Route::Health, "/health", GET, None),
    served(Route::Liveness, "/liveness", GET, None),
    served(Route::Readiness, "/readiness", GET, None),
    served(Route::Other, "other", &[], None),
];

impl Route {
    /// How many there are; metrics hold one handle for each.
    pub const COUNT: usize = 28;

    /// The row of a path.
    #[must_use]
    pub fn find(path: &str) -> &'static Row {
        let [rows @ .., other] = &ROWS;
        rows.iter().find(|row| row.matches(path)).unwrap_or(other)
    }

    /// All rows, in the order of [`Route::index`].
    #[must_use]
    pub fn rows() -> &'static [Row; Self::COUNT] {
        &ROWS
    }

    /// This route's place among [`Route::rows`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl Row {
    fn matches(&self, path: &str) -> bool {
        self.path == path || self.captured(path).is_some()
    }

    /// What stands in `path` for the segment in braces, if this row has one and matches.
    #[must_use]
    pub fn captured<'p>(&self, path: &'p str) -> Option<&'p str> {
        let (before, rest) = self.path.split_once('{')?;
        let (_, after) = rest.split_once('}')?;
        let segment = path.strip_prefix(before)?.strip_suffix(after)?;
        (!segment.is_empty() && !segment.contains('/')).then_some(segment)
    }

    /// Whether the route answers `method`.
    #[must_use]
    pub fn answers(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    /// The `Allow` header of a 405.
    #[must_use]
    pub fn allow(&self) -> String {
        self.methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_stands_at_its_index() {
        for (at, row) in ROWS.iter().enumerate() {
            assert_eq!(row.route.index(), at);
            assert_eq!(Route::find(row.path).route, row.route);
        }
    }

    #[test]
    fn the_six_routes_of_the_document_may_stream() {
        let streams =
            |row: &&Row| row.inference.as_ref().is_some_and(|inference| inference.streams);
        let paths: Vec<_> = ROWS.iter().filter(streams).map(|row| row.path).collect();
        assert_eq!(
            paths,
            [
                "/v1/chat/completions",
                "/v1/completions",
                "/v1/messages",
                "/generate",
                "/v1/embeddings",
                "/v1/classify"
            ]
        );
    }

    #[test]
    fn responses_have_no_rid_and_rerank_the_first_of_a_list() {
        let rid = |path| Route::find(path).inference.as_ref().unwrap().rid;
        assert_eq!(rid("/v1/responses"), Rid::None);
        assert_eq!((rid("/rerank"), rid("/v1/rerank")), (Rid::First, Rid::First));
        assert_eq!((rid("/v1/messages"), rid("/generate")), (Rid::Text, Rid::Text));
    }

    #[test]
    fn usage_counts_where_a_prompt_was_read_for_it() {
        let reads = |path| Route::find(path).inference.as_ref().unwrap().reads_prompts();
        for path in ["/v1/chat/completions", "/v1/messages", "/generate", "/v1/responses"] {
            assert!(reads(path), "{path}");
        }
        for path in ["/v1/messages/count_tokens", "/v1/tokenize", "/v1/responses/r1"] {
            assert!(!reads(path), "{path}");
        }
    }

    #[test]
    fn only_whole_paths_match() {
        for path in ["/", "", "/v1/chat/completions/", "/v1/chat", "/V1/models", "//workers"] {
            assert_eq!(Route::find(path).route, Route::Other, "{path}");
        }
    }

    #[test]
    fn one_segment_is_captured_and_no_more() {
        let captured = |path| {
            let row = Route::find(path);
            row.captured(path).map(|id| (row.route, id))
        };
        assert_eq!(captured("/workers/7f"), Some((Route::Worker, "7f")));
        assert_eq!(captured("/v1/responses/r1"), Some((Route::Response, "r1")));
        assert_eq!(captured("/v1/responses/r1/cancel"), Some((Route::ResponseCancel, "r1")));
        assert_eq!(captured("/v1/responses/r1/input_items"), Some((Route::ResponseItems, "r1")));
        assert_eq!(captured("/v1/responses/cancel"), Some((Route::Response, "cancel")));
        for path in [
            "/workers",
            "/workers/",
            "/workers/a/b",
            "/workers/a/",
            "/health",
            "/x/7f",
            "/v1/responses//cancel",
            "/v1/responses/a/b/cancel",
            "/v1/responses/a/delete",
        ] {
            assert_eq!(captured(path), None, "{path}");
        }
    }

    #[test]
    fn methods_are_told_in_allow() {
        let chat = Route::find("/v1/chat/completions");
        assert!(chat.answers(&Method::POST) && !chat.answers(&Method::GET));
        assert_eq!(
            (chat.allow(), Route::find("/health").allow()),
            ("POST".into(), "GET, HEAD".into())
        );
    }
}
