//! Stands in for the compiler's support library: what the compiler calls by itself (`memcpy` and its kin) the kernel
//! exports. Anything else would show up as an undefined symbol when a module is linked.
#![feature(compiler_builtins)]
#![allow(internal_features)]
#![compiler_builtins]
#![no_builtins]
#![no_std]
