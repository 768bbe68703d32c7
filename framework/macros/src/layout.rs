//! `#[derive(Layout)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields, Generics, Index, Member, parse_quote};

pub(crate) fn derive(item: TokenStream) -> TokenStream {
    let item: DeriveInput = match syn::parse2(item) {
        Ok(item) => item,
        Err(error) => return error.into_compile_error(),
    };
    let (ident, name) = (&item.ident, item.ident.to_string());
    let fields = match &item.data {
        Data::Struct(data) => {
            let members = members(&data.fields).map(|(member, field)| {
                let (name, ty) = (text(&member), &field.ty);
                quote! { .field(#name, ::core::mem::offset_of!(Self, #member), <#ty as ::ekiden::Layout>::FINGERPRINT) }
            });
            quote! { #(#members)* }
        }
        // Where the fields of a variant are follows from their types, their order and the compiler.
        Data::Enum(data) => {
            let variants = data.variants.iter().zip(0_usize..).map(|(variant, index)| {
                let variant_name = variant.ident.to_string();
                let members = members(&variant.fields).map(|(member, field)| {
                    let (name, ty) = (text(&member), &field.ty);
                    quote! { .field(#name, #index, <#ty as ::ekiden::Layout>::FINGERPRINT) }
                });
                quote! { .field(#variant_name, #index, <() as ::ekiden::Layout>::FINGERPRINT) #(#members)* }
            });
            quote! { #(#variants)* }
        }
        Data::Union(_) => {
            return Error::new_spanned(ident, "a union may be anything: use an enum").into_compile_error();
        }
    };
    let generics = with_bounds(item.generics.clone());
    let (parameters, arguments, conditions) = generics.split_for_impl();
    quote! {
        impl #parameters ::ekiden::Layout for #ident #arguments #conditions {
            const FINGERPRINT: ::ekiden::Fingerprint = ::ekiden::Fingerprint::of::<Self>(#name) #fields;
        }
    }
}

fn members(fields: &Fields) -> impl Iterator<Item = (Member, &syn::Field)> {
    fields.iter().zip(0_u32..).map(|(field, index)| {
        let member = match &field.ident {
            Some(ident) => Member::Named(ident.clone()),
            None => Member::Unnamed(Index::from(index as usize)),
        };
        (member, field)
    })
}

fn text(member: &Member) -> String {
    match member {
        Member::Named(ident) => ident.to_string(),
        Member::Unnamed(index) => index.index.to_string(),
    }
}

fn with_bounds(mut generics: Generics) -> Generics {
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::ekiden::Layout));
    }
    generics
}
