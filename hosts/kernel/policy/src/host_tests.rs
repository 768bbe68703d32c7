//! What a policy asks reaches the table of `ekiden.ko`, and the answer comes back as what it means.

use super::*;
use crate::kernel_fakes::{SAYS, calls, turn};

const TASK: TaskId = TaskId { slot: 5, generation: 2 };

#[test]
fn a_claim_is_done_or_refused_for_the_reason_of_that_number() {
    let _turn = turn();
    let token = RawToken { task: TASK, serial: 9, cpu: 1 };
    for (says, expected) in [
        (0, Ok(())),
        (1, Err(RefusalReason::WrongCpu)),
        (3, Err(RefusalReason::Gone)),
        (5, Err(RefusalReason::Busy)),
        (99, Err(RefusalReason::Gone)),
    ] {
        SAYS.set(says);
        assert_eq!(Kernel.claim(token, 3), expected);
        assert_eq!(calls(), [std::format!("claim {} 9 3", TASK.to_bits())]);
    }
}

#[test]
fn an_idle_cpu_is_one_less_than_what_the_kernel_says() {
    let _turn = turn();
    for (says, expected) in [(0, None), (1, Some(0)), (65, Some(64))] {
        SAYS.set(says);
        assert_eq!(Kernel.take_idle(TASK, None), expected);
        assert_eq!(calls(), [std::format!("take_idle {} None", TASK.to_bits())], "no set is not an empty set");
    }
    let mut among = CpuMask::new();
    among.set(2);
    SAYS.set(3);
    assert_eq!(Kernel.take_idle(TASK, Some(&among)), Some(2));
    assert!(calls()[0].contains("Some([4"));
}

#[test]
fn sets_have_the_words_of_the_machine_and_nothing_of_before() {
    let _turn = turn();
    let mut cpus = CpuMask::new();
    cpus.set(300);
    for words in [1, 2, 4] {
        MASK_WORDS.store(words, Relaxed);
        Kernel.idle_cpus(&mut cpus);
        assert_eq!(cpus.as_words()[..words], [6, 6, 6, 6][..words]);
        assert!(cpus.as_words()[words..].iter().all(|word| *word == 0));
        Kernel.allowed_cpus(TASK, &mut cpus);
        assert_eq!(cpus.as_words()[words - 1], TASK.to_bits());
    }
}

#[test]
fn what_is_not_there_is_none() {
    let _turn = turn();
    SAYS.set(0);
    assert_eq!((Kernel.running(1), Kernel.process(TASK)), (None, None));
    SAYS.set(TASK.to_bits());
    assert_eq!(Kernel.running(1), Some(Running { task: TASK, weight: 501, since_ns: 70 }));
    assert!(Kernel.may_run(TASK, 2) && !Kernel.may_run(TASK, 3));
    SAYS.set(44);
    assert_eq!(Kernel.process(TASK), Some(44));
    assert_eq!(Kernel.now_ns(), 9_000);
}

#[test]
fn a_group_is_its_number_and_below_that_its_weight() {
    let _turn = turn();
    SAYS.set(0xdead_beef_0000_0064);
    assert_eq!(Kernel.group(TASK), Group { id: 0xdead_beef, weight: 100 });
}

#[test]
fn a_notice_is_written_or_there_is_a_reason() {
    let _turn = turn();
    for (says, expected) in [(0, Ok(())), (1, Err(NotTold::Full)), (2, Err(NotTold::Closed)), (9, Err(NotTold::Closed))]
    {
        SAYS.set(says);
        assert_eq!(Kernel.notify(7, b"hello"), expected);
        assert_eq!(calls(), ["notify 7 hello"]);
    }
}
