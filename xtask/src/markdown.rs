//! The little Markdown that the checks read: table rows, code spans, headings and links.

/// The first cell of each table row, with its line number from 1. Rows inside a code fence are no rows.
pub(crate) fn first_cells(text: &str) -> Vec<(usize, &str)> {
    rows(text).filter_map(|(number, row)| Some((number, row.split('|').next()?.trim()))).collect()
}

fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    lines(text).filter_map(|(number, line)| Some((number, line.strip_prefix('|')?)))
}

/// Lines outside code fences, with their numbers from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        let fence = line.starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// The text of each heading.
pub(crate) fn headings(text: &str) -> impl Iterator<Item = &str> {
    lines(text).filter_map(|(_, line)| Some(line.strip_prefix('#')?.trim_start_matches('#').trim()))
}

/// Where each link or image leads, with its line: `[text](target)` or `[name]: target`.
pub(crate) fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    lines(text).flat_map(|(number, line)| {
        let named = line.strip_prefix('[').and_then(|rest| rest.split_once("]: "));
        let named = named.map(|(_, target)| target);
        // What stands between backticks is no link.
        let plain = line.split('`').step_by(2);
        let inline = plain.flat_map(|piece| piece.split("](").skip(1));
        let inline = inline.filter_map(|rest| Some(rest.split_once(')')?.0));
        // A title may follow the target.
        let targets = named.into_iter().chain(inline).filter_map(|it| it.split_whitespace().next());
        targets.map(move |target| (number, target))
    })
}

/// What stands between backticks on a line, in order.
pub(crate) fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::{code_spans, first_cells, headings, links};

    #[test]
    fn first_cells_come_from_rows_only() {
        let text = "a | b\n| `x` | y |\n|---|---|\n```\n| no | row |\n```\n| z |";
        assert_eq!(first_cells(text), [(2, "`x`"), (3, "---"), (7, "z")]);
    }

    #[test]
    fn links_and_headings_are_found_outside_code() {
        let text = "# A `b`\n[x](a.md) ![y](b.png \"t\") `[z](c.md)`\n[n]: d.md\n```\n[no](e.md)\n# no\n```\n## C";
        assert_eq!(links(text).collect::<Vec<_>>(), [(2, "a.md"), (2, "b.png"), (3, "d.md")]);
        assert_eq!(headings(text).collect::<Vec<_>>(), ["A `b`", "C"]);
    }

    #[test]
    fn code_spans_are_every_second_piece() {
        assert_eq!(code_spans("a `b` c `d`").collect::<Vec<_>>(), ["b", "d"]);
        assert_eq!(code_spans("none").count(), 0);
    }
}
