//! Weights of nice values.

/// The weight of nice 0.
///
/// ```
/// assert_eq!(ekiden::weight_of_nice(0), ekiden::NICE_0_WEIGHT);
/// ```
pub const NICE_0_WEIGHT: u32 = 1024;

/// One step of nice is worth a factor of about 1.25, so that the share of two tasks changes by about 10 % a step.
/// The kernel's `sched_prio_to_weight`, so that shares agree with its own scheduler.
const WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121, 2501,
    1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15,
];

/// The weight of a nice value; values outside −20…19 count as the nearest one inside.
///
/// ```
/// use ekiden::weight_of_nice;
///
/// assert_eq!((weight_of_nice(-20), weight_of_nice(19), weight_of_nice(99)), (88761, 15, 15));
/// ```
pub fn weight_of_nice(nice: i32) -> u32 {
    WEIGHTS[(nice.clamp(-20, 19) + 20) as usize]
}

/// How far the vruntime of a task of this weight advances in `ns` nanoseconds of CPU time: the kernel's `calc_delta_fair`. At nice 0 it
/// is the CPU time; a weight of 0 counts as 1.
///
/// ```
/// use ekiden::{NICE_0_WEIGHT, scaled_ns, weight_of_nice};
///
/// assert_eq!(scaled_ns(3_000_000, NICE_0_WEIGHT), 3_000_000);
/// assert_eq!(scaled_ns(3_000_000, 2 * NICE_0_WEIGHT), 1_500_000);
/// assert!(scaled_ns(3_000_000, weight_of_nice(5)) > 9_000_000);
/// assert_eq!(scaled_ns(7, 0), scaled_ns(7, 1));
/// ```
///
/// Cost: a comparison at nice 0, and a division otherwise. `ns` is below 2^54, which is half a year.
#[inline]
pub fn scaled_ns(ns: u64, weight: u32) -> u64 {
    if weight == NICE_0_WEIGHT { ns } else { ns * u64::from(NICE_0_WEIGHT) / u64::from(weight.max(1)) }
}
