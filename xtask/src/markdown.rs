//! The little Markdown that the checks read: table rows and code spans.

/// The first cell of each table row, with its line number from 1. Rows inside a code fence are no rows.
pub(crate) fn first_cells(text: &str) -> Vec<(usize, &str)> {
    rows(text).filter_map(|(number, row)| Some((number, row.split('|').next()?.trim()))).collect()
}

fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        if line.starts_with("```") {
            fenced = !fenced;
        }
        if fenced { None } else { Some((index + 1, line.strip_prefix('|')?)) }
    })
}

/// What stands between backticks on a line, in order.
pub(crate) fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::{code_spans, first_cells};

    #[test]
    fn first_cells_come_from_rows_only() {
        let text = "a | b\n| `x` | y |\n|---|---|\n```\n| no | row |\n```\n| z |";
        assert_eq!(first_cells(text), [(2, "`x`"), (3, "---"), (7, "z")]);
    }

    #[test]
    fn code_spans_are_every_second_piece() {
        assert_eq!(code_spans("a `b` c `d`").collect::<Vec<_>>(), ["b", "d"]);
        assert_eq!(code_spans("none").count(), 0);
    }
}
