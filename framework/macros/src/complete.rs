//! Fills in what an implementation of `Scheduler`, and of the traits beside it, leaves out.

use ekiden_abi::Call;
use proc_macro2::TokenStream;
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{
    Attribute, Error, Ident, ImplItem, ImplItemFn, ItemImpl, Result, Token, parse::Parser, parse_quote,
    parse_quote_spanned, punctuated::Punctuated, spanned::Spanned,
};

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

/// A trait that a policy implements besides `Scheduler` if it needs it.
struct Extra {
    name: &'static str,
    /// The constant that says which of its calls are implemented.
    calls: Option<&'static str>,
    members: &'static [&'static str],
}

const EXTRAS: [Extra; 3] = [
    Extra {
        name: "HintQueues",
        calls: Some("HINT_CALLS"),
        members: &["Hint", "Notice", "register_queue", "enter_queue", "unregister_queue", "parse_hint"],
    },
    Extra {
        name: "TaskSettings",
        calls: Some("SETTING_CALLS"),
        members: &["TASK_PARAMS", "check_task_params", "task_params"],
    },
    Extra { name: "SavedState", calls: None, members: &["save", "restore"] },
];

/// The implementation in `item` with everything that was missing. Mistakes stand before it as errors, and it
/// is as complete as it can be all the same, so that one error is not followed by others about what is missing.
pub(crate) fn complete(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let (extra, mut item) = match parse(item.clone()) {
        Ok(parsed) => parsed,
        Err(error) => {
            let error = error.into_compile_error();
            return quote! { #error #item };
        }
    };
    let mut errors = Vec::new();
    let others = match extra {
        Some(extra) => {
            if !arguments.is_empty() {
                errors.push(Error::new_spanned(arguments, "`#[policy]` takes arguments on `impl Scheduler` only"));
            }
            complete_extra(extra, &mut item);
            Vec::new()
        }
        None => {
            let implemented = named(arguments, &mut errors);
            // Without what belongs elsewhere: the compiler would say once more, and less, that it does not belong here.
            item.items.retain(|item| misplaced(item).map(|error| errors.push(error)).is_none());
            complete_scheduler(&mut item, &mut errors);
            let missing = EXTRAS.iter().filter(|extra| !implemented.iter().any(|name| name == extra.name));
            missing.map(|extra| by_nothing(extra, &item)).collect()
        }
    };
    let errors = errors.into_iter().map(Error::into_compile_error);
    quote! { #(#errors)* #item #(#others)* }
}

/// The other traits that `#[policy(…)]` says are implemented beside this one.
fn named(arguments: TokenStream, errors: &mut Vec<Error>) -> Vec<Ident> {
    const WHAT: &str =
        "`#[policy]` takes the names of what is implemented besides: `HintQueues`, `TaskSettings`, `SavedState`";
    let names = Punctuated::<Ident, Token![,]>::parse_terminated.parse2(arguments.clone());
    let Ok(names) = names else {
        errors.push(Error::new_spanned(arguments, WHAT));
        return Vec::new();
    };
    errors.extend(
        names
            .iter()
            .filter(|name| !EXTRAS.iter().any(|extra| *name == extra.name))
            .map(|name| Error::new_spanned(name, WHAT)),
    );
    names.into_iter().collect()
}

/// The error of an item that belongs to another trait.
fn misplaced(item: &ImplItem) -> Option<Error> {
    let name = ident(item)?;
    let extra = EXTRAS.iter().find(|extra| extra.members.iter().any(|member| name == member))?.name;
    let text =
        format!("`{name}` belongs to `impl {extra}`: move it there, and name that here, as in `#[policy({extra})]`");
    Some(Error::new_spanned(name, text))
}

/// What the item of an implementation is called.
fn ident(item: &ImplItem) -> Option<&Ident> {
    match item {
        ImplItem::Const(item) => Some(&item.ident),
        ImplItem::Type(item) => Some(&item.ident),
        ImplItem::Fn(item) => Some(&item.sig.ident),
        _ => None,
    }
}

/// An implementation of a trait that the policy has no use for.
fn by_nothing(extra: &Extra, scheduler: &ItemImpl) -> TokenStream {
    let (generics, _, bounds) = scheduler.generics.split_for_impl();
    let policy = &scheduler.self_ty;
    let name = format_ident!("{}", extra.name);
    let mut empty: ItemImpl = parse_quote! { impl #generics ::ekiden::#name for #policy #bounds {} };
    complete_extra(extra, &mut empty);
    empty.into_token_stream()
}

/// Whether the implementation says what `name` is.
fn gives(item: &ItemImpl, name: &str) -> bool {
    item.items.iter().filter_map(ident).any(|ident| ident == name)
}

fn complete_extra(extra: &Extra, item: &mut ItemImpl) {
    let mut added: Vec<ImplItem> = Vec::new();
    if let Some(constant) = extra.calls.filter(|constant| !gives(item, constant)) {
        added.push(calls(constant, item, &quote! { ::ekiden::Calls::NONE }));
    }
    match extra.name {
        "HintQueues" => {
            for name in ["Hint", "Notice"].into_iter().filter(|name| !gives(item, name)) {
                let name = format_ident!("{name}");
                added.push(parse_quote! { type #name = (); });
            }
        }
        "TaskSettings" if !gives(item, "TASK_PARAMS") => {
            added.push(parse_quote! { const TASK_PARAMS: &'static [::ekiden::Param] = &[]; });
        }
        _ => {}
    }
    item.items.extend(added);
}

fn complete_scheduler(item: &mut ItemImpl, errors: &mut Vec<Error>) {
    let mut added: Vec<ImplItem> = Vec::new();
    // A trait that is named and not implemented is an error at the policy's name.
    let policy = item.self_ty.span();
    if !gives(item, "NAME") {
        let name = name::of(&item.self_ty).unwrap_or_else(|error| {
            errors.push(error);
            String::new()
        });
        added.push(parse_quote! { const NAME: &'static str = #name; });
    }
    if !gives(item, "CALLS") {
        let always = ALWAYS.map(variant);
        let begin = quote_spanned! { policy =>
            ::ekiden::Calls::NONE #( .with(::ekiden::Call::#always) )*
                .and(<Self as ::ekiden::HintQueues>::HINT_CALLS)
                .and(<Self as ::ekiden::TaskSettings>::SETTING_CALLS)
        };
        added.push(calls("CALLS", item, &begin));
    }
    if !gives(item, "LAYOUT") {
        added.push(parse_quote_spanned! { policy =>
            const LAYOUT: ::core::option::Option<::ekiden::Fingerprint> = {
                #[allow(unused_imports)]
                use ::ekiden::layout::Unknown as _;
                ::ekiden::layout::Of::<<Self as ::ekiden::Scheduler>::State>::FINGERPRINT
            };
        });
    }
    if !gives(item, "State") {
        added.push(parse_quote! { type State = Self; });
        if !gives(item, "reregister_prep") {
            added.push(parse_quote! {
                fn reregister_prep(self) -> Self {
                    self
                }
            });
        }
        if !gives(item, "reregister_init") {
            added.push(parse_quote! {
                fn reregister_init(_env: &::ekiden::Env, state: Self) -> Self {
                    state
                }
            });
        }
    }
    item.items.iter_mut().for_each(inline);
    item.items.extend(added);
}

/// In a kernel a host calls these from two places, with a call log and without, at every task switch.
const BUSIEST: [&str; 2] = ["enqueue", "pick_next_task"];

fn inline(item: &mut ImplItem) {
    let ImplItem::Fn(method) = item else { return };
    let is_said = method.attrs.iter().any(|attribute| attribute.path().is_ident("inline"));
    if is_said {
        return;
    }
    if BUSIEST.iter().any(|name| method.sig.ident == name) {
        method.attrs.push(parse_quote! { #[cfg_attr(target_os = "none", inline)] });
    }
    // A debugger that stops in the method finds it at one place.
    method.attrs.push(parse_quote! { #[cfg_attr(not(target_os = "none"), inline(never))] });
}

/// Reads the item that the attribute stands on, and which of the other traits it implements, if not `Scheduler`.
fn parse(item: TokenStream) -> Result<(Option<&'static Extra>, ItemImpl)> {
    let misplaced = |at: &dyn ToTokens| {
        Error::new_spanned(at, "`#[policy]` belongs on `impl Scheduler for MyPolicy { … }`: move it there")
    };
    let item = match syn::parse2::<syn::Item>(item)? {
        syn::Item::Impl(item) => item,
        other => return Err(misplaced(&other)),
    };
    let Some((_, path, _)) = &item.trait_ else { return Err(misplaced(&item.self_ty)) };
    let name = path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
    match EXTRAS.iter().find(|extra| extra.name == name) {
        None if name != "Scheduler" => Err(misplaced(path)),
        extra => Ok((extra, item)),
    }
}

/// The constant that says which calls are implemented here, besides those of `begin`. A method that is compiled only under some
/// condition counts under that condition only.
fn calls(constant: &str, item: &ItemImpl, begin: &TokenStream) -> ImplItem {
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
    let constant = format_ident!("{constant}");
    parse_quote! {
        const #constant: ::ekiden::Calls = {
            let calls = #begin;
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
