//! Weights of nice values.

use ekiden::{NICE_0_WEIGHT, weight_of_nice};

#[test]
fn nice_0_weighs_1024() {
    assert_eq!(weight_of_nice(0), NICE_0_WEIGHT);
    assert_eq!(NICE_0_WEIGHT, 1024);
}

#[test]
fn each_step_of_nice_is_worth_about_a_quarter() {
    for nice in -20..19 {
        let (heavier, lighter) = (f64::from(weight_of_nice(nice)), f64::from(weight_of_nice(nice + 1)));
        let ratio = heavier / lighter;
        assert!((1.19..1.31).contains(&ratio), "from {nice} to {} it is {ratio}", nice + 1);
    }
}

#[test]
fn five_steps_are_worth_a_factor_of_three() {
    let ratio = f64::from(weight_of_nice(0)) / f64::from(weight_of_nice(5));
    assert!((ratio - 1.25_f64.powi(5)).abs() < 0.05, "{ratio}");
}

#[test]
fn values_outside_the_range_count_as_its_ends() {
    assert_eq!(weight_of_nice(i32::MIN), weight_of_nice(-20));
    assert_eq!(weight_of_nice(i32::MAX), weight_of_nice(19));
    assert_ne!(weight_of_nice(-20), weight_of_nice(-19));
}
