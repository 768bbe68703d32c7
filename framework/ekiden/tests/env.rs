//! What a policy is born into: parameters, and state per CPU and per task.

use ekiden::{Env, Param, ParamError, PerCpu, PerTask, TaskId, Topology};

const SLICE: Param = Param { name: "slice_us", help: "Time slice.", default: 3000, min: 100, max: 100_000 };
const SPREAD: Param = Param { name: "spread", help: "Whether to spread tasks.", default: 1, min: 0, max: 1 };

fn env(params: &str) -> Result<Env, ParamError> {
    Env::new(Topology::flat(3), 16, &[SLICE, SPREAD], params)
}

#[test]
fn parameters_that_nobody_sets_have_their_defaults() {
    for nothing in ["", " ", " ,\n"] {
        let env = env(nothing).unwrap();
        assert_eq!((env.param("slice_us"), env.param("spread")), (3000, 1));
    }
}

#[test]
fn parameters_are_set_by_name() {
    for text in ["slice_us=100 spread=0", "spread=0,slice_us=100", "spread=0, slice_us=100\n"] {
        let env = env(text).unwrap();
        assert_eq!((env.param("slice_us"), env.param("spread")), (100, 0), "{text:?}");
    }
}

#[test]
fn the_last_of_several_settings_counts() {
    assert_eq!(env("slice_us=200 slice_us=300").unwrap().param("slice_us"), 300);
}

#[test]
fn a_parameter_that_the_policy_does_not_have_is_refused() {
    let error = env("slice_ms=3").unwrap_err();
    assert_eq!(error, ParamError::Unknown("slice_ms".into()));
    assert!(error.to_string().contains("slice_ms"));
}

#[test]
fn a_setting_that_is_no_number_is_refused() {
    for text in ["slice_us", "slice_us=", "slice_us=3ms", "slice_us=-1", "=3", "slice_us=18446744073709551616"] {
        let error = env(text).unwrap_err();
        // A name is missing in one of them, which is no parameter either.
        let expected =
            if text == "=3" { ParamError::Unknown(String::new()) } else { ParamError::Malformed(text.into()) };
        assert_eq!(error, expected);
    }
}

#[test]
fn a_value_is_checked_against_both_ends_of_the_range() {
    assert!(env("slice_us=100").is_ok() && env("slice_us=100000").is_ok());
    for value in [99, 100_001] {
        let error = env(&format!("slice_us={value}")).unwrap_err();
        assert_eq!(error, ParamError::OutOfRange { param: SLICE, value });
        assert!(error.to_string().contains("100..=100000"));
    }
}

#[test]
#[should_panic(expected = "parameter slice_ns is not in the policy's PARAMS")]
fn asking_for_an_undeclared_parameter_names_it() {
    env("").unwrap().param("slice_ns");
}

#[test]
fn each_cpu_has_its_own() {
    let per_cpu = PerCpu::new(&env("").unwrap(), |cpu| cpu * 10);
    assert_eq!(per_cpu.iter().map(|(cpu, value)| (cpu, *value)).collect::<Vec<_>>(), [(0, 0), (1, 10), (2, 20)]);
    assert_eq!(per_cpu[2], 20);
}

#[test]
fn cpus_do_not_share_a_cache_line() {
    let per_cpu = PerCpu::new(&env("").unwrap(), |_| 0_u8);
    let address = |cpu| std::ptr::from_ref(&per_cpu[cpu]).addr();
    assert_eq!(address(0) % 64, 0);
    assert_eq!(address(1) - address(0), 64);
}

#[test]
#[should_panic(expected = "index out of bounds")]
fn a_cpu_beyond_the_machine_has_none() {
    let per_cpu = PerCpu::new(&env("").unwrap(), |cpu| cpu);
    assert_eq!(per_cpu[3], 3);
}

#[test]
fn each_task_has_its_own_and_a_slot_is_used_again() {
    let mut next = 0;
    let per_task = PerTask::new(&env("").unwrap(), || {
        next += 1;
        next
    });
    assert_eq!(next, 16, "one for each task that there can be");
    let task = |slot, generation| TaskId { slot, generation };
    assert_ne!(per_task[task(0, 1)], per_task[task(15, 1)]);
    assert_eq!(per_task[task(4, 1)], per_task[task(4, 2)]);
}
