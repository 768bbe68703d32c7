//! `#[derive(Plain)]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Fields};

pub(crate) fn derive(item: TokenStream) -> TokenStream {
    let item: DeriveInput = match syn::parse2(item) {
        Ok(item) => item,
        Err(error) => return error.into_compile_error(),
    };
    shape(&item).unwrap_or_else(Error::into_compile_error)
}

fn shape(item: &DeriveInput) -> Result<TokenStream, Error> {
    let (ident, name) = (&item.ident, item.ident.to_string());
    if !item.generics.params.is_empty() {
        return Err(Error::new_spanned(
            &item.generics,
            "a program has to know what is in it: leave out the parameters",
        ));
    }
    let kind = match &item.data {
        Data::Struct(data) => {
            let Fields::Named(fields) = &data.fields else {
                return Err(Error::new_spanned(ident, "C knows fields by their names: give them names"));
            };
            if !has_repr(item, |repr| repr == "C") {
                return Err(Error::new_spanned(
                    ident,
                    "where its fields are is the compiler's choice: add `#[repr(C)]`",
                ));
            }
            let fields = fields.named.iter().map(|field| {
                let (member, ty) = (&field.ident, &field.ty);
                let name = member.as_ref().map(ToString::to_string);
                quote! {
                    ::ekiden::host::hints::Field {
                        name: #name,
                        offset: ::core::mem::offset_of!(#ident, #member),
                        shape: &<#ty as ::ekiden::Plain>::SHAPE,
                    }
                }
            });
            quote! { Struct(&[#(#fields),*]) }
        }
        Data::Enum(data) => {
            if let Some(variant) = data.variants.iter().find(|variant| !matches!(variant.fields, Fields::Unit)) {
                return Err(Error::new_spanned(variant, "C has no variants with fields: use a structure"));
            }
            if !has_repr(item, |repr| repr.starts_with(['u', 'i'])) {
                return Err(Error::new_spanned(
                    ident,
                    "its size is the compiler's choice: add `#[repr(u8)]` or the like",
                ));
            }
            let variants = data.variants.iter().map(|variant| {
                let (variant, name) = (&variant.ident, variant.ident.to_string());
                quote! { (#name, #ident::#variant as i64) }
            });
            quote! { Enum(&[#(#variants),*]) }
        }
        Data::Union(_) => return Err(Error::new_spanned(ident, "a union may be anything: use a structure")),
    };
    Ok(quote! {
        impl ::ekiden::Plain for #ident {
            const SHAPE: ::ekiden::host::hints::Shape = ::ekiden::host::hints::Shape {
                name: #name,
                bytes: ::core::mem::size_of::<#ident>(),
                align: ::core::mem::align_of::<#ident>(),
                kind: ::ekiden::host::hints::Kind::#kind,
            };
        }
    })
}

fn has_repr(item: &DeriveInput, is_it: impl Fn(&str) -> bool) -> bool {
    let mut found = false;
    for attribute in item.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        // The compiler reports mistakes in it.
        let _ = attribute.parse_nested_meta(|meta| {
            found |= meta.path.get_ident().is_some_and(|ident| is_it(&ident.to_string()));
            Ok(())
        });
    }
    found
}
