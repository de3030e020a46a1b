//! Pure bytes.
