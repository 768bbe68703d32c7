//! The name of a policy, made from the name of its type.

use ekiden_abi::NAME_LEN;
use syn::{Error, Result, Type};

/// The name of `policy`, a type, in the form that people type: `ShortestJob` is `shortest-job`.
pub(crate) fn of(policy: &Type) -> Result<String> {
    let ident = match policy {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    };
    let name = ident.map(|ident| kebab(ident.trim_start_matches("r#")));
    match name {
        Some(name) if is_fit(&name) => Ok(name),
        _ => Err(Error::new_spanned(
            policy,
            format!(
                "no name of a policy can be made from this type: write `const NAME: &'static str = \"…\";` with lower \
                 case letters, digits and dashes, {NAME_LEN} at most"
            ),
        )),
    }
}

fn is_fit(name: &str) -> bool {
    (1..=NAME_LEN).contains(&name.len()) && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// A word begins at an upper case letter after a lower case one or a digit, and at the last of several upper case
/// letters before a lower case one: `HTTPServer2` is `http-server2`.
fn kebab(ident: &str) -> String {
    let letters: Vec<char> = ident.chars().collect();
    let mut name = String::new();
    for (index, letter) in letters.iter().enumerate() {
        if *letter == '_' {
            name.push('-');
            continue;
        }
        let before = index.checked_sub(1).map(|before| letters[before]);
        let after = letters.get(index + 1);
        let begins_word = letter.is_uppercase()
            && before.is_some_and(|before| {
                before != '_' && (!before.is_uppercase() || after.is_some_and(|after| after.is_lowercase()))
            });
        if begins_word {
            name.push('-');
        }
        name.extend(letter.to_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_camel_case() {
        for (ident, name) in [
            ("Fifo", "fifo"),
            ("ShortestJob", "shortest-job"),
            ("WFQ", "wfq"),
            ("HTTPServer2", "http-server2"),
            ("Level2Queue", "level2-queue"),
            ("Snake_Case", "snake-case"),
            ("A", "a"),
        ] {
            assert_eq!(kebab(ident), name);
        }
    }

    #[test]
    fn a_generic_type_is_named_without_its_parameters() {
        let policy = syn::parse_str("some::path::Shards<Fifo, 4>").unwrap();
        assert_eq!(of(&policy).unwrap(), "shards");
    }

    #[test]
    fn a_type_that_gives_no_usable_name_needs_one() {
        for text in ["(Fifo, Fifo)", "Größe", "[Fifo; 2]", "AVeryLongNameThatDoesNotFitIntoTheWire"] {
            let error = of(&syn::parse_str(text).unwrap()).unwrap_err();
            assert!(error.to_string().contains("const NAME"), "{text}: {error}");
        }
    }
}
