//! Documents of which a part is written by a command: between two lines that mark its place.

use std::{fs, io, path::Path};

use anyhow::{Context, Result};

const END: &str = "<!-- up to here -->\n";

/// Puts figures into a document in the place that is marked for a command; a document without the mark gets them at its end.
pub(crate) fn write_into(path: &Path, command: &str, figures: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text,
    };
    fs::write(path, between_marks(&text.with_context(failed)?, command, figures)).with_context(failed)
}

fn between_marks(text: &str, command: &str, figures: &str) -> String {
    let begin = format!("<!-- {command} --markdown writes this -->\n");
    let (before, rest) = text.split_once(&begin).unwrap_or((text, ""));
    let after = rest.split_once(END).map_or("", |(_, after)| after);
    format!("{before}{begin}\n{figures}\n{END}{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_takes_its_own_place_in_a_document() {
        let begin = "<!-- ekiden fidelity --markdown writes this -->\n";
        let once = between_marks("before\n", "ekiden fidelity", "table 1\n");
        assert_eq!(once, format!("before\n{begin}\ntable 1\n\n{END}"));
        assert_eq!(
            between_marks(&(once + "after\n"), "ekiden fidelity", "table 2\n"),
            format!("before\n{begin}\ntable 2\n\n{END}after\n")
        );
    }
}
