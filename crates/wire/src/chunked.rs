//! Bodies in chunks (RFC 9112, 7.1).

/// Appends a chunk of this data; the last chunk if there is none.
pub fn write(data: &[u8], out: &mut Vec<u8>) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    out.reserve(data.len() + 20);
    let digits = (usize::BITS - data.len().leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        let digit = (data.len() >> (4 * digit)) & 15;
        out.extend(DIGITS.get(digit));
    }
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}
