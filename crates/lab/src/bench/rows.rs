//! The rows of the table: what each measures, in which units, and what smg must reach.
//!
//! A later row is one more variant here, its work in `load`, and its line in `run_row` of `bench.rs`; the rest follows
//! from this table.

use serde::Serialize;

use super::contender::{Contender, Routing};

/// One kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub(crate) enum Row {
    /// Small chat, sticky by header.
    Sticky,
    /// Small chat, round robin.
    RoundRobin,
    /// 64 streams of 200 events back to back.
    SseBurst,
    /// 1,000 streams, an event every 20 ms.
    SsePaced,
    /// Chats that grow turn by turn, placed by their prefix.
    GrowingChat,
    /// 10 MiB bodies that nobody has to read.
    BodyStreamed,
    /// 10 MiB bodies with the routing key at their end.
    BodyRead,
    /// The same, of which only the opening is read.
    BodyPeeked,
    /// Start to first answer, idle memory.
    Start,
    /// [`Self::Sticky`] with HTTP/1.1 to the workers, and with HTTP/2.
    StickyHttp2,
    /// [`Self::SseBurst`] with either.
    SseBurstHttp2,
    /// [`Self::SsePaced`] with either.
    SsePacedHttp2,
}

pub(crate) const ALL: [Row; 12] = [
    Row::Sticky,
    Row::RoundRobin,
    Row::SseBurst,
    Row::SsePaced,
    Row::GrowingChat,
    Row::BodyStreamed,
    Row::BodyRead,
    Row::BodyPeeked,
    Row::Start,
    Row::StickyHttp2,
    Row::SseBurstHttp2,
    Row::SsePacedHttp2,
];

/// A limit for smg, set against another figure of the same run or absolute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    OfPeer(f64),
    OfHaproxy(f64),
    /// For HTTP/2 to the workers, of what HTTP/1.1 costs.
    OfHttp1(f64),
    AtMost(f64),
}

/// One figure of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) must: Limit,
    pub(crate) aim: Limit,
}

const START: [Metric; 2] = [
    Metric { name: "idle memory", unit: "MB", must: Limit::AtMost(20.0), aim: Limit::AtMost(8.0) },
    Metric {
        name: "first answer",
        unit: "ms",
        must: Limit::AtMost(100.0),
        aim: Limit::AtMost(50.0),
    },
];

/// The figures of a row of large bodies: CPU in ms and growth in MB, as (must, aim).
const fn of_bodies(cpu: (f64, f64), growth: (f64, f64)) -> [Metric; 2] {
    [
        Metric {
            name: "CPU",
            unit: "ms/request",
            must: Limit::AtMost(cpu.0),
            aim: Limit::AtMost(cpu.1),
        },
        Metric {
            name: "memory growth",
            unit: "MB",
            must: Limit::AtMost(growth.0),
            aim: Limit::AtMost(growth.1),
        },
    ]
}

const BODY_STREAMED: [Metric; 2] = of_bodies((5.5, 4.0), (20.0, 4.0));
const BODY_READ: [Metric; 2] = of_bodies((15.0, 8.0), (180.0, 180.0));
/// A tenth dearer than one that nobody reads.
const BODY_PEEKED: [Metric; 2] = of_bodies((6.05, 4.4), (20.0, 4.0));

/// What HTTP/2 to the workers may cost.
const fn http2_cpu(unit: &'static str) -> Metric {
    Metric { name: "CPU", unit, must: Limit::OfHttp1(1.3), aim: Limit::OfHttp1(1.0) }
}

const STICKY_HTTP2: [Metric; 1] = [http2_cpu("µs/request")];
const SSE_BURST_HTTP2: [Metric; 1] = [http2_cpu("µs/event")];
const SSE_PACED_HTTP2: [Metric; 2] = [
    http2_cpu("µs/event"),
    Metric {
        name: "memory",
        unit: "KB/stream",
        must: Limit::AtMost(42.0),
        aim: Limit::OfHttp1(1.0),
    },
];

impl Row {
    /// Whose figures are to keep the row's limits.
    pub(crate) fn subject(self) -> Contender {
        match self {
            Self::StickyHttp2 | Self::SseBurstHttp2 | Self::SsePacedHttp2 => Contender::OursHttp2,
            _ => Contender::Ours,
        }
    }

    /// Whether this contender can do the row's work.
    pub(crate) fn is_for(self, contender: Contender) -> bool {
        if self.subject() == Contender::OursHttp2 {
            return matches!(contender, Contender::Ours | Contender::OursHttp2);
        }
        match (self, contender) {
            (_, Contender::OursHttp2) => false,
            (Self::BodyRead, Contender::Haproxy) => false,
            (Self::BodyPeeked, contender) => contender == Contender::Ours,
            _ => true,
        }
    }

    pub(crate) fn routing(self) -> Routing {
        match self {
            Self::Sticky | Self::StickyHttp2 => Routing::Sticky,
            Self::GrowingChat => Routing::CacheAware,
            Self::BodyStreamed => Routing::Streamed,
            Self::BodyRead => Routing::KeyInBody,
            Self::BodyPeeked => Routing::KeyInOpening,
            Self::RoundRobin
            | Self::SseBurst
            | Self::SsePaced
            | Self::Start
            | Self::SseBurstHttp2
            | Self::SsePacedHttp2 => Routing::RoundRobin,
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Sticky => "small chat, sticky by header",
            Self::RoundRobin => "small chat, round robin",
            Self::SseBurst => "SSE, 64 streams × 200 events back to back",
            Self::SsePaced => "SSE, 1,000 streams, an event every 20 ms",
            Self::GrowingChat => "chat of 8 growing turns, cache_aware",
            Self::BodyStreamed => "10 MiB bodies, 16 in flight, streamed",
            Self::BodyRead => "10 MiB bodies, 16 in flight, sticky by rid at the end",
            Self::BodyPeeked => "10 MiB bodies, 16 in flight, sticky by their opening",
            Self::Start => "start",
            Self::StickyHttp2 => "small chat, sticky, HTTP/2 to the workers",
            Self::SseBurstHttp2 => "SSE, 64 × 200 events back to back, HTTP/2 to the workers",
            Self::SsePacedHttp2 => "SSE, 1,000 paced streams, HTTP/2 to the workers",
        }
    }

    /// The row's figures, in the order in which a reading holds them.
    pub(crate) fn metrics(self) -> &'static [Metric] {
        match self {
            Self::Sticky => &[Metric {
                name: "CPU",
                unit: "µs/request",
                must: Limit::OfPeer(0.3),
                aim: Limit::OfHaproxy(1.6),
            }],
            Self::RoundRobin => &[Metric {
                name: "CPU",
                unit: "µs/request",
                must: Limit::OfPeer(1.0 / 3.0),
                aim: Limit::OfHaproxy(1.5),
            }],
            Self::SseBurst => &[Metric {
                name: "CPU",
                unit: "µs/event",
                must: Limit::OfPeer(0.35),
                aim: Limit::OfHaproxy(1.5),
            }],
            Self::SsePaced => &[
                Metric {
                    name: "CPU",
                    unit: "µs/event",
                    must: Limit::OfPeer(0.75),
                    aim: Limit::OfPeer(0.6),
                },
                Metric {
                    name: "memory",
                    unit: "KB/stream",
                    must: Limit::AtMost(42.0),
                    aim: Limit::AtMost(34.0),
                },
            ],
            Self::GrowingChat => &[
                Metric {
                    name: "CPU",
                    unit: "µs/request",
                    must: Limit::OfPeer(1.0 / 3.0),
                    aim: Limit::AtMost(60.0),
                },
                Metric {
                    name: "memory growth",
                    unit: "MB",
                    must: Limit::AtMost(10.0),
                    aim: Limit::AtMost(10.0),
                },
            ],
            Self::BodyStreamed => &BODY_STREAMED,
            Self::BodyRead => &BODY_READ,
            Self::BodyPeeked => &BODY_PEEKED,
            Self::Start => &START,
            Self::StickyHttp2 => &STICKY_HTTP2,
            Self::SseBurstHttp2 => &SSE_BURST_HTTP2,
            Self::SsePacedHttp2 => &SSE_PACED_HTTP2,
        }
    }
}
