//! TLS, on either side.

use std::path::PathBuf;

use clap::Args;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct TlsFlags {
    /// Certificate that clients are shown, followed by those of its issuers (PEM); the gateway's port
    /// then speaks HTTPS only
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert_path: Option<PathBuf>,

    /// Key of that certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key_path: Option<PathBuf>,

    /// Certificate that workers at https:// URLs are shown if they ask for one (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) client_cert_path: Option<PathBuf>,

    /// Key of that certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub(crate) client_key_path: Option<PathBuf>,

    /// CAs that may vouch for workers at https:// URLs, beside those the system trusts (PEM)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) ca_cert_paths: Vec<PathBuf>,
}
