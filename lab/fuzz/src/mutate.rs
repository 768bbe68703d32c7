//! Changes input here and there, at random and always the same way for one seed. Knows nothing of coverage; that is for
//! libFuzzer.

use ekiden_workload::random::Random;

/// Pieces that readers look at more closely.
const PIECES: [&[u8]; 12] = [
    b"{",
    b"}",
    b"[",
    b"\"",
    b":",
    b",",
    b"0",
    b"-1",
    b"18446744073709551615",
    b"1e999",
    b"\xff\xff\xff\xff",
    b"\0\0\0\0",
];

/// Longest input that is made of another one.
const LEN_MAX: usize = 1 << 17;

/// Makes inputs of seeds.
pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    random: Random,
}

impl Mutator {
    /// Makes inputs of these seeds, of which there must be one at least.
    pub fn new(seeds: Vec<Vec<u8>>, seed: u64) -> Self {
        assert!(!seeds.is_empty(), "there is no seed to begin with");
        Self { seeds, random: Random::new(seed) }
    }

    /// The next input: a seed with one to eight changes.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.any_seed().to_vec();
        for _ in 0..=self.below(8) {
            self.change(&mut input);
        }
        input.truncate(LEN_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(16)).min(input.len());
        match self.below(6) {
            0 if at < end => input[at] ^= 1 << self.below(8),
            1 if at < end => input[at] = self.below(256) as u8,
            2 => drop(input.drain(at..end)),
            3 => drop(input.splice(at..at, PIECES[self.below(PIECES.len())].iter().copied())),
            4 => {
                let piece = input[at..end].to_vec();
                input.splice(at..at, piece);
            }
            _ => {
                let other = self.any_seed();
                let from = other.len().min(at);
                let piece = other[from..(from + 32).min(other.len())].to_vec();
                input.splice(at..end, piece);
            }
        }
    }

    fn any_seed(&mut self) -> &[u8] {
        let index = self.below(self.seeds.len());
        &self.seeds[index]
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.random.next() % limit.max(1) as u64) as usize
    }
}
