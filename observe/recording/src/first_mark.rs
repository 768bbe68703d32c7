//! To which instance of a policy the oldest calls belong that rings still have.

use crate::record::{MARK, Mark, Record};

/// To which instance the calls before the first mark belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstCalls {
    /// There is no mark: to the one that is in charge when the records are read.
    Newest,
    /// To the one of this number.
    Of(u64),
    /// That cannot be told.
    Unknown,
}

/// The earliest mark of some records.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstMark(Option<(u64, Mark, u64)>);

impl FirstMark {
    /// These are some of the records.
    pub fn look(&mut self, records: &[Record]) {
        let marks = records.iter().filter(|record| record.0[0] & 0xff == MARK);
        let marks = marks
            .filter_map(|Record([first, mark, instance, ..])| Some((first >> 8, Mark::from_number(*mark)?, *instance)));
        self.0 = self.0.into_iter().chain(marks).min_by_key(|(time, ..)| *time);
    }

    /// `known` are the numbers of the newest instances that there were, up to any of them without one missing in between.
    pub fn calls_before(&self, known: impl IntoIterator<Item = u64>) -> FirstCalls {
        match self.0 {
            None => FirstCalls::Newest,
            Some((_, Mark::Fault, number)) => FirstCalls::Of(number),
            // Others may have come and gone in the pause.
            Some((_, Mark::GoOn, _)) => FirstCalls::Unknown,
            Some((_, Mark::Begin | Mark::HandOver, number)) => {
                let before = known.into_iter().filter(|known| *known < number).max();
                before.map_or(FirstCalls::Unknown, FirstCalls::Of)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn before(marks: &[(u64, Mark, u64)], known: &[u64]) -> FirstCalls {
        let mut first = FirstMark::default();
        for (time, mark, number) in marks {
            // A call before each, which is no mark.
            let records =
                [Record([1, 4, 77, 0, 0, 0, 0, 0]), Record([time << 8 | MARK, *mark as u64, *number, 0, 0, 0, 0, 0])];
            first.look(&records);
        }
        first.calls_before(known.iter().copied())
    }

    #[test]
    fn the_calls_before_the_first_mark_are_of_the_instance_before_it() {
        use FirstCalls::{Newest, Of, Unknown};
        assert_eq!(before(&[], &[7, 9]), Newest);
        // The rings of CPUs are read one after the other, and numbers between are those of policies beside it.
        assert_eq!(
            before(&[(30, Mark::HandOver, 9), (20, Mark::Begin, 7), (30, Mark::HandOver, 9)], &[4, 7, 9]),
            Of(4)
        );
        // One that has come while the list was made.
        assert_eq!(before(&[(20, Mark::Begin, 12)], &[4, 7, 9]), Of(9));
        assert_eq!(before(&[(20, Mark::Begin, 4)], &[4, 7, 9]), Unknown, "it is too long ago");
        assert_eq!(before(&[(20, Mark::Fault, 9)], &[4, 7, 9]), Of(9));
        assert_eq!(before(&[(20, Mark::GoOn, 9)], &[4, 7, 9]), Unknown);
    }
}
