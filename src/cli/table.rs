//! Columns as kubectl prints them.

/// The table with its headings; columns are as wide as their widest cell, the last is not padded.
pub(crate) fn render(headings: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells
            .chain([headings[column].chars().count()])
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut out = String::new();
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    for row in std::iter::once(&headings).chain(rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            line.push_str(cell);
            if column + 1 < row.len() {
                let padding = widths[column] + 3 - cell.chars().count();
                line.extend(std::iter::repeat_n(' ', padding));
            }
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
