//! Flags of other versions and other gateways, understood so that they can be explained.

use clap::Args;

#[derive(Clone, Debug, Args)]
pub(crate) struct OtherFlags {
    #[arg(long, hide = true)]
    pub(crate) disable_worker_overload_protection: bool,

    #[arg(long, hide = true)]
    pub(crate) worker_overload_shed: bool,

    #[arg(long, hide = true)]
    pub(crate) enable_mesh: bool,

    #[arg(long, hide = true)]
    pub(crate) enable_wasm: bool,

    #[arg(long, hide = true, num_args = 0..=1, default_missing_value = "")]
    pub(crate) stream_request_bodies_over: Option<String>,
}
