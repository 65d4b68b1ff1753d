//! Columns as kubectl prints them.

use std::fmt::Write as _;

/// The table with its headings; columns are as wide as their widest cell, the last is not padded.
pub(crate) fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let counts = cells.map(|cell| cell.chars().count());
        counts.fold(headings[column].chars().count(), usize::max)
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut out = String::new();
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            let _ = write!(line, "{cell:width$}   ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = vec![
            vec!["0".into(), "pool-a".into(), "é".into()],
            vec!["10".into(), "p".into(), "x".into()],
        ];
        assert_eq!(
            render(&["RANK", "MACHINE", "V"], &rows),
            "RANK   MACHINE   V\n0      pool-a    é\n10     p         x\n"
        );
    }
}
