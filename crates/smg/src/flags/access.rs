//! Who may ask.

use clap::Args;
use smg_gateway::settings::Secret;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessFlags {
    /// Key that clients of inference routes and /v1/models must bring, as Bearer or x-api-key; it is
    /// also what workers are sent
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<Secret>,

    /// A further key for clients, with the name of its tenant; it never goes to a worker
    #[arg(long, value_name = "NAME=KEY", num_args = 1..)]
    pub(crate) tenant_api_key: Vec<Secret>,

    /// Key of the operator's routes, such as /workers
    #[arg(long, value_name = "KEY")]
    pub(crate) admin_api_key: Option<Secret>,

    /// Origins whose pages may ask, such as https://chat.example; none without it
    #[arg(long, value_name = "ORIGIN", num_args = 0..)]
    pub(crate) cors_allowed_origins: Vec<String>,
}
