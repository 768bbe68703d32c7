//! Tables for people.

use comfy_table::{CellAlignment, ContentArrangement, Table, TableComponent, presets::UTF8_HORIZONTAL_ONLY};

/// Lays rows out under a heading; every column but the first is of numbers, at the right.
pub fn table<R>(heading: &[&str], rows: R) -> String
where
    R: IntoIterator,
    R::Item: IntoIterator<Item = String>,
{
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.remove_style(TableComponent::HorizontalLines).remove_style(TableComponent::MiddleIntersections);
    table.set_header(heading);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// A number with as many digits as are worth reading: `15,620`, `0.956`.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    if value.abs() < 100.0 {
        return format!("{value:.3}");
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_number_has_the_digits_that_are_worth_reading() {
        let texts = [15_620.4, 0.956, 1_234_567.0, 100.0, 99.99, -4_096.0].map(number);
        assert_eq!(texts, ["15,620", "0.956", "1,234,567", "100", "99.990", "-4,096"]);
    }

    #[test]
    fn numbers_stand_under_each_other() {
        let rows = [["default", "15,620"], ["fifo", "930"]].map(|row| row.map(str::to_owned));
        expect![[r"
            ──────────────────
             policy    median
            ══════════════════
             default   15,620
             fifo         930
            ──────────────────"]]
        .assert_eq(&table(&["policy", "median"], rows));
    }
}
