//! memcached's text protocol (its `doc/protocol.txt`): what a client has sent, as requests. No input or output here.

use std::str;

/// Most bytes of a key, as in memcached.
pub(crate) const KEY_MAX: usize = 250;

/// Most bytes of a line, with all its keys. memcached takes as much.
pub(crate) const LINE_MAX: usize = 8192;

/// Most bytes of a value, as memcached has it by default.
pub(crate) const VALUE_MAX: usize = 1 << 20;

/// More than a client may say that a value has: what follows such a line is not looked for its end.
const SAID_MAX: usize = 1 << 30;

const ERROR: &str = "ERROR\r\n";
const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const BAD_TIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
const TOO_LONG: &str = "CLIENT_ERROR line too long\r\n";
const TOO_LARGE: &str = "SERVER_ERROR object too large for cache\r\n";

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Set,
    /// If there is none.
    Add,
    /// If there is one.
    Replace,
    /// If it is the one with this number, as `gets` says.
    Cas(u64),
}

/// A request, in the client's own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command<'a> {
    /// Words between blanks, each a good key. With their numbers for [`How::Cas`], or without.
    Get {
        keys: &'a [u8],
        with_cas: bool,
    },
    Store {
        how: How,
        key: &'a [u8],
        flags: u32,
        expires: i64,
        value: &'a [u8],
    },
    Delete {
        key: &'a [u8],
    },
    /// Adds, or else subtracts.
    Count {
        key: &'a [u8],
        up: bool,
        by: u64,
    },
    Touch {
        key: &'a [u8],
        expires: i64,
    },
    FlushAll {
        after_s: i64,
    },
    Stats,
    Version,
    Verbosity,
    Quit,
}

/// What the bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// Not all of a request.
    Incomplete,
    /// A request of this many bytes.
    Request { command: Command<'a>, is_quiet: bool, bytes: usize },
    /// No request. `bytes` are to be passed over, more than there may be now.
    Wrong { answer: &'static str, bytes: usize },
    /// None, and where the next one begins cannot be told: the connection is to be closed.
    Lost { answer: &'static str },
}

/// The words of a line: as in memcached, only blanks part them.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

fn number<T: str::FromStr>(word: &[u8]) -> Option<T> {
    str::from_utf8(word).ok()?.parse().ok()
}

fn is_key(word: &[u8]) -> bool {
    word.len() <= KEY_MAX && !word.iter().any(u8::is_ascii_control)
}

/// Looks at what has come: at a line and a value at most.
pub(crate) fn parse(input: &[u8]) -> Parsed<'_> {
    let Some(end) = input.iter().take(LINE_MAX).position(|byte| *byte == b'\n') else {
        return if input.len() < LINE_MAX { Parsed::Incomplete } else { Parsed::Lost { answer: TOO_LONG } };
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let bytes = end + 1;
    if let Some(name) = words(line).next().filter(|name| matches!(*name, b"get" | b"gets")) {
        return match get(line, name) {
            Ok(command) => Parsed::Request { command, is_quiet: false, bytes },
            Err(answer) => Parsed::Wrong { answer, bytes },
        };
    }
    // No request has more.
    let mut all: Vec<&[u8]> = words(line).take(8).collect();
    let is_quiet = all.len() > 1 && all.last() == Some(&&b"noreply"[..]);
    if is_quiet {
        all.pop();
    }
    let how = match all[..] {
        [b"set", ..] => Some(How::Set),
        [b"add", ..] => Some(How::Add),
        [b"replace", ..] => Some(How::Replace),
        [b"cas", ..] => Some(How::Cas(0)),
        _ => None,
    };
    if let Some(how) = how {
        return store(how, &all[1..], is_quiet, input, bytes);
    }
    match other(&all) {
        Ok(command) => Parsed::Request { command, is_quiet, bytes },
        Err(answer) => Parsed::Wrong { answer, bytes },
    }
}

fn get<'a>(line: &'a [u8], name: &[u8]) -> Result<Command<'a>, &'static str> {
    let keys = &line[line.iter().take_while(|byte| **byte == b' ').count() + name.len()..];
    if words(keys).next().is_none() {
        return Err(ERROR);
    }
    if !words(keys).all(is_key) {
        return Err(BAD_FORMAT);
    }
    Ok(Command::Get { keys, with_cas: name == b"gets" })
}

fn key(word: &[u8]) -> Result<&[u8], &'static str> {
    if is_key(word) { Ok(word) } else { Err(BAD_FORMAT) }
}

fn other<'a>(all: &[&'a [u8]]) -> Result<Command<'a>, &'static str> {
    Ok(match *all {
        // Old clients say a time, which has to be 0.
        [b"delete", word] | [b"delete", word, b"0"] => Command::Delete { key: key(word)? },
        [b"delete", _, ..] => return Err(BAD_DELETE),
        [b"incr" | b"decr", word, by] => {
            Command::Count { key: key(word)?, up: all[0] == b"incr", by: number(by).ok_or(BAD_DELTA)? }
        }
        [b"touch", word, expires] => Command::Touch { key: key(word)?, expires: number(expires).ok_or(BAD_TIME)? },
        [b"flush_all"] => Command::FlushAll { after_s: 0 },
        [b"flush_all", after] => Command::FlushAll { after_s: number(after).ok_or(BAD_TIME)? },
        [b"stats"] => Command::Stats,
        [b"version"] => Command::Version,
        [b"verbosity", _, ..] => Command::Verbosity,
        [b"quit"] => Command::Quit,
        _ => return Err(ERROR),
    })
}

/// A line that says how many bytes of a value follow, which are passed over in any case.
fn store<'a>(how: How, words: &[&'a [u8]], is_quiet: bool, input: &'a [u8], line: usize) -> Parsed<'a> {
    let wrong = |answer| Parsed::Wrong { answer, bytes: line };
    let (word, flags, expires, length, how) = match (how, words) {
        (How::Cas(_), [word, flags, expires, length, cas]) => {
            let Some(cas) = number(cas) else { return wrong(BAD_FORMAT) };
            (word, flags, expires, length, How::Cas(cas))
        }
        (How::Set | How::Add | How::Replace, [word, flags, expires, length]) => (word, flags, expires, length, how),
        _ => return wrong(ERROR),
    };
    let Some(length) = number::<usize>(length) else { return wrong(BAD_CHUNK) };
    if length > SAID_MAX {
        return Parsed::Lost { answer: TOO_LARGE };
    }
    let bytes = line + length + 2;
    if length > VALUE_MAX {
        return Parsed::Wrong { answer: TOO_LARGE, bytes };
    }
    let (Some(flags), Some(expires), Ok(key)) = (number(flags), number(expires), key(word)) else {
        return Parsed::Wrong { answer: BAD_FORMAT, bytes };
    };
    let Some(chunk) = input.get(line..bytes) else { return Parsed::Incomplete };
    match chunk.strip_suffix(b"\r\n") {
        Some(value) => Parsed::Request { command: Command::Store { how, key, flags, expires, value }, is_quiet, bytes },
        None => Parsed::Wrong { answer: BAD_CHUNK, bytes },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(input: &[u8]) -> (Command<'_>, bool) {
        match parse(input) {
            Parsed::Request { command, is_quiet, bytes } if bytes == input.len() => (command, is_quiet),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_request_is_read() {
        let get = |keys, with_cas| (Command::Get { keys, with_cas }, false);
        assert_eq!(request(b"get a\r\n"), get(b" a", false));
        assert_eq!(request(b"gets a  b noreply\r\n"), get(b" a  b noreply", true));
        assert_eq!(words(b" a  b").collect::<Vec<_>>(), [b"a", b"b"]);
        let store = |how, expires| Command::Store { how, key: b"k", flags: 7, expires, value: b"a\r\nb" };
        assert_eq!(request(b"set k 7 0 4\r\na\r\nb\r\n"), (store(How::Set, 0), false));
        assert_eq!(request(b"add k 7 -1 4 noreply\r\na\r\nb\r\n"), (store(How::Add, -1), true));
        assert_eq!(request(b"replace k 7 9 4\na\r\nb\r\n"), (store(How::Replace, 9), false));
        assert_eq!(request(b"cas k 7 9 4 11\r\na\r\nb\r\n"), (store(How::Cas(11), 9), false));
        assert_eq!(request(b"delete k noreply\r\n"), (Command::Delete { key: b"k" }, true));
        assert_eq!(request(b"incr k 5\r\n"), (Command::Count { key: b"k", up: true, by: 5 }, false));
        assert_eq!(request(b"decr k 5\r\n"), (Command::Count { key: b"k", up: false, by: 5 }, false));
        assert_eq!(request(b"touch k 30\r\n"), (Command::Touch { key: b"k", expires: 30 }, false));
        assert_eq!(request(b"flush_all noreply\r\n"), (Command::FlushAll { after_s: 0 }, true));
        assert_eq!(request(b"flush_all 10\r\n"), (Command::FlushAll { after_s: 10 }, false));
        assert_eq!(request(b"stats\r\n"), (Command::Stats, false));
        assert_eq!(request(b"version\r\n"), (Command::Version, false));
        assert_eq!(request(b"verbosity 1\r\n"), (Command::Verbosity, false));
        assert_eq!(request(b"quit\r\n"), (Command::Quit, false));
    }

    #[test]
    fn what_is_wrong_is_said_and_passed_over() {
        let wrong = |input: &[u8]| match parse(input) {
            Parsed::Wrong { answer, bytes } => (answer, bytes),
            other => panic!("{other:?}"),
        };
        let long = [b"get ".to_vec(), vec![b'k'; KEY_MAX + 1], b"\r\n".to_vec()].concat();
        assert_eq!(wrong(&long), (BAD_FORMAT, long.len()));
        for line in ["\r\n", "\n", "get\r\n", "nonsense\r\n", "set k 1\r\n", "noreply\r\n", "incr k\r\n"] {
            assert_eq!(wrong(line.as_bytes()), (ERROR, line.len()), "{line:?}");
        }
        assert_eq!(wrong(b"incr k -1\r\n"), (BAD_DELTA, 11));
        assert_eq!(wrong(b"touch k soon\r\n"), (BAD_TIME, 14));
        assert_eq!(wrong(b"delete k 3\r\n").0, BAD_DELETE);
        assert_eq!(wrong(b"set k 0 0 -1\r\n"), (BAD_CHUNK, 14));
        assert_eq!(wrong(b"set k x 0 3\r\n"), (BAD_FORMAT, 13 + 5), "with the value that follows");
        assert_eq!(wrong(b"set k 0 0 1\r\nabc"), (BAD_CHUNK, 13 + 3));
        assert_eq!(wrong(b"set k 0 0 1048577\r\n"), (TOO_LARGE, 19 + 1_048_579), "more than there is yet");
    }

    #[test]
    fn what_cannot_be_told_from_the_next_request_ends_the_connection() {
        assert_eq!(parse(&[b'a'; LINE_MAX]), Parsed::Lost { answer: TOO_LONG });
        assert_eq!(parse(&[b'a'; LINE_MAX - 1]), Parsed::Incomplete);
        assert_eq!(parse(b"set k 0 0 99999999999\r\n"), Parsed::Lost { answer: TOO_LARGE });
    }

    #[test]
    fn a_request_is_incomplete_until_its_last_byte() {
        let all = b"set k 7 0 4\r\na\r\nb\r\n";
        for length in 0..all.len() {
            assert_eq!(parse(&all[..length]), Parsed::Incomplete, "{length}");
        }
    }

    fn nearly() -> impl Strategy<Value = Vec<u8>> {
        let word = prop::sample::select(vec![
            "set", "add", "cas", "get", "gets", "incr", "noreply", "0", "-1", "4", "1048577", "k", " ", "\r\n", "\n",
            "abcd\r\n",
        ]);
        prop::collection::vec(word, 0..40).prop_map(|words| words.join(" ").into_bytes())
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(input in prop_oneof![prop::collection::vec(any::<u8>(), 0..400), nearly()]) {
            match parse(&input) {
                Parsed::Request { bytes, .. } => prop_assert!(0 < bytes && bytes <= input.len()),
                Parsed::Wrong { bytes, answer } => {
                    prop_assert!(0 < bytes && bytes <= LINE_MAX + SAID_MAX + 2);
                    prop_assert!(answer.ends_with("\r\n"));
                }
                Parsed::Incomplete => prop_assert!(input.len() < LINE_MAX + VALUE_MAX + 2),
                Parsed::Lost { answer } => prop_assert!(answer.ends_with("\r\n")),
            }
        }
    }
}
