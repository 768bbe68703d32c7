//! Fills in what an implementation of `Scheduler` leaves out.

use ekiden_abi::Call;
use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote};
use syn::{Attribute, Error, Ident, ImplItem, ImplItemFn, ItemImpl, Result, parse_quote};

use crate::name;

/// The calls that every policy implements: `enqueue` is the default of all but the first, and is required.
const ALWAYS: [Call; 7] = [
    Call::PickNextTask,
    Call::PntErr,
    Call::TaskNew,
    Call::TaskWakeup,
    Call::TaskPreempt,
    Call::TaskYield,
    Call::MigrateTaskRq,
];

/// The implementation in `item` with everything that was missing. What is wrong stands before it as an error, and it
/// is as complete as it can be all the same, so that one error is not followed by others about what is missing.
pub(crate) fn complete(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let mut item = match parse(item.clone()) {
        Ok(item) => item,
        Err(error) => {
            let error = error.into_compile_error();
            return quote! { #error #item };
        }
    };
    let mut errors = Vec::new();
    if !arguments.is_empty() {
        errors.push(Error::new_spanned(arguments, "`#[policy]` takes no arguments: remove them"));
    }
    let given = |name: &str| {
        item.items.iter().any(|item| match item {
            ImplItem::Const(item) => item.ident == name,
            ImplItem::Type(item) => item.ident == name,
            ImplItem::Fn(item) => item.sig.ident == name,
            _ => false,
        })
    };

    let mut added: Vec<ImplItem> = Vec::new();
    if !given("NAME") {
        let name = name::of(&item.self_ty).unwrap_or_else(|error| {
            errors.push(error);
            String::new()
        });
        added.push(parse_quote! { const NAME: &'static str = #name; });
    }
    if !given("CALLS") {
        added.push(calls(&item));
    }
    if !given("LAYOUT") {
        added.push(parse_quote! {
            const LAYOUT: ::core::option::Option<::ekiden::Fingerprint> = {
                #[allow(unused_imports)]
                use ::ekiden::layout::Unknown as _;
                ::ekiden::layout::Of::<<Self as ::ekiden::Scheduler>::State>::FINGERPRINT
            };
        });
    }
    if !given("Hint") {
        added.push(parse_quote! { type Hint = (); });
    }
    if !given("Notice") {
        added.push(parse_quote! { type Notice = (); });
    }
    if !given("State") {
        added.push(parse_quote! { type State = Self; });
        if !given("reregister_prep") {
            added.push(parse_quote! {
                fn reregister_prep(self) -> Self {
                    self
                }
            });
        }
        if !given("reregister_init") {
            added.push(parse_quote! {
                fn reregister_init(_env: &::ekiden::Env, state: Self) -> Self {
                    state
                }
            });
        }
    }
    item.items.iter_mut().for_each(inline);
    item.items.extend(added);
    let errors = errors.into_iter().map(Error::into_compile_error);
    quote! { #(#errors)* #item }
}

/// A host calls these from two places, with a tape and without, at every task switch.
const BUSIEST: [&str; 2] = ["enqueue", "pick_next_task"];

fn inline(item: &mut ImplItem) {
    let ImplItem::Fn(method) = item else { return };
    let is_said = method.attrs.iter().any(|attribute| attribute.path().is_ident("inline"));
    if !is_said && BUSIEST.iter().any(|name| method.sig.ident == name) {
        method.attrs.push(parse_quote! { #[inline] });
    }
}

/// Reads the item that the attribute stands on.
fn parse(item: TokenStream) -> Result<ItemImpl> {
    let misplaced = |at: &dyn ToTokens| {
        Error::new_spanned(at, "`#[policy]` belongs on `impl Scheduler for MyPolicy { … }`: move it there")
    };
    match syn::parse2::<syn::Item>(item)? {
        syn::Item::Impl(item) => match &item.trait_ {
            Some((None, path, _)) if path.segments.last().is_some_and(|segment| segment.ident == "Scheduler") => {
                Ok(item)
            }
            Some((_, path, _)) => Err(misplaced(path)),
            None => Err(misplaced(&item.self_ty)),
        },
        other => Err(misplaced(&other)),
    }
}

/// The constant that says which calls are implemented here. A method that is compiled only under some condition
/// counts under that condition only.
fn calls(item: &ItemImpl) -> ImplItem {
    let always = ALWAYS.map(variant);
    let methods = item.items.iter().filter_map(|item| match item {
        ImplItem::Fn(method) => Some(method),
        _ => None,
    });
    let more = methods.flat_map(|method| {
        let conditions: Vec<_> = conditions(method).collect();
        implemented_by(method).map(move |call| {
            let call = variant(call);
            quote! { #(#conditions)* let calls = calls.with(::ekiden::Call::#call); }
        })
    });
    parse_quote! {
        const CALLS: ::ekiden::Calls = {
            let calls = ::ekiden::Calls::NONE #( .with(::ekiden::Call::#always) )*;
            #(#more)*
            calls
        };
    }
}

/// The calls that do something because `method` is there.
fn implemented_by(method: &ImplItemFn) -> impl Iterator<Item = Call> {
    let name = method.sig.ident.to_string();
    Call::ALL.into_iter().filter(move |call| {
        !ALWAYS.contains(call)
            // By default `enter_queue` hands each hint to `parse_hint`.
            && (call.name() == name || (*call == Call::EnterQueue && name == Call::ParseHint.name()))
    })
}

fn conditions(method: &ImplItemFn) -> impl Iterator<Item = &Attribute> {
    method.attrs.iter().filter(|attribute| attribute.path().is_ident("cfg"))
}

/// The name of `call` in the enum.
fn variant(call: Call) -> Ident {
    format_ident!("{call:?}")
}
