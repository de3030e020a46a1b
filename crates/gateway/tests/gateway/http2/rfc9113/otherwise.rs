//! Cases that end otherwise than the suite wants: the case, how its report ends, and why that is right
//! or has to do. A case that is listed and holds fails the run too, so that it leaves the list.

/// The mistake ends the connection as it should, and GOAWAY names it less exactly.
const COARSE: &str = "but got ProtocolError";
/// The stream went on.
const SILENT: &str = "nothing came";

pub(super) const OTHERWISE: [(&str, &str, &str); 16] = [
    (
        "4. http frames: invalid header block fragment",
        COARSE,
        "h2 calls a block that does not decode PROTOCOL_ERROR, not COMPRESSION_ERROR",
    ),
    (
        "5. streams and multiplexing: half closed remote sends data frame",
        COARSE,
        "h2 ends the connection where the stream's end would do (5.4.1 allows more, not less)",
    ),
    (
        "5. streams and multiplexing: half closed remote sends headers frame",
        COARSE,
        "h2 ends the connection where the stream's end would do",
    ),
    (
        "5. streams and multiplexing: closed sends headers frame",
        COARSE,
        "h2 forgets streams that have ended and sees an identifier that does not grow (5.1.1)",
    ),
    (
        "5. streams and multiplexing: closed sends headers frame after rst stream",
        COARSE,
        "h2 forgets streams that were reset and sees an identifier that does not grow (5.1.1)",
    ),
    (
        "6. frame definitions: sends data frame on invalid stream state",
        COARSE,
        "h2 ends the connection where the stream's end would do",
    ),
    (
        "6. frame definitions: sends ping frame with invalid length",
        COARSE,
        "h2 calls a length that its kind of frame cannot have PROTOCOL_ERROR, not FRAME_SIZE_ERROR",
    ),
    (
        "6. frame definitions: sends priority frame with invalid length",
        COARSE,
        "as with PING: a frame's length",
    ),
    (
        "6. frame definitions: sends rst stream frame with invalid length",
        COARSE,
        "as with PING: a frame's length",
    ),
    (
        "6. frame definitions: sends settings frame with ack and payload",
        COARSE,
        "as with PING: a frame's length",
    ),
    (
        "6. frame definitions: sends settings frame with invalid length",
        COARSE,
        "as with PING: a frame's length",
    ),
    (
        "6. frame definitions: sends window update frame with invalid length",
        COARSE,
        "as with PING: a frame's length",
    ),
    (
        "6. frame definitions: sends settings initial window size with invalid value",
        COARSE,
        "h2 calls a window that cannot be PROTOCOL_ERROR, not FLOW_CONTROL_ERROR",
    ),
    (
        "6. frame definitions: sends settings initial window size with exceeded max window size value",
        COARSE,
        "h2 calls a window that cannot be PROTOCOL_ERROR, not FLOW_CONTROL_ERROR",
    ),
    (
        "8. expressing http semantics in http2: client sends push promise frame",
        SILENT,
        "the suite's frame is not whole (no END_HEADERS), so h2 waits for its rest; a whole one is refused \
         (`what_a_client_must_not_say_ends_its_connection`)",
    ),
    (
        "8. expressing http semantics in http2: sends headers frame with pseudo header in trailer",
        SILENT,
        "h2 drops such a field before anybody sees it, and trailers end at the gateway",
    ),
];
