//! The request path.
