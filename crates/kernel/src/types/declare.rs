//! A type as C declares it.

use super::{MAX_DEPTH, Shape, Tag, TypeRef, TypeSource};
use crate::error::Result;

/// Types in one declaration that are written out: function types can refer to themselves.
const MAX_PARTS: usize = 256;

impl dyn TypeSource + '_ {
    /// `inner` declared as a variable of type `of`, as C; with an empty `inner` the type itself.
    ///
    /// # Errors
    /// As [`TypeSource::shape`].
    pub fn declare(&mut self, of: TypeRef, inner: String) -> Result<String> {
        self.declare_within(of, inner, MAX_DEPTH, &mut MAX_PARTS.clone())
    }

    fn declare_within(&mut self, of: TypeRef, inner: String, depth: usize, parts: &mut usize) -> Result<String> {
        let (Some(depth), Some(left)) = (depth.checked_sub(1), parts.checked_sub(1)) else {
            return Ok(format!("... {inner}"));
        };
        *parts = left;
        let spaced = |type_name: &str, inner: &str| {
            if inner.is_empty() { type_name.to_owned() } else { format!("{type_name} {inner}") }
        };
        let tagged = |tag: Tag, name: Option<&str>| {
            let keyword = tag.keyword().unwrap_or_default();
            spaced(&format!("{keyword} {}", name.unwrap_or("{...}")), &inner)
        };
        Ok(match self.shape(of)? {
            Shape::Void => spaced("void", &inner),
            Shape::Base { name, .. } | Shape::Typedef { name, .. } => spaced(&name, &inner),
            Shape::Compound(compound) => tagged(compound.tag, compound.name.as_deref()),
            Shape::Enum { name, .. } => tagged(Tag::Enum, name.as_deref()),
            Shape::Declared { tag, name } => tagged(tag, Some(&name)),
            Shape::Pointer(to) => {
                let inner = match self.shape(to)? {
                    Shape::Array { .. } | Shape::Function { .. } => format!("(*{inner})"),
                    _ => format!("*{inner}"),
                };
                self.declare_within(to, inner, depth, parts)?
            }
            Shape::Array { of, lengths } => {
                let lengths: String = lengths.iter().map(|n| n.map_or("[]".to_owned(), |n| format!("[{n}]"))).collect();
                self.declare_within(of, format!("{inner}{lengths}"), depth, parts)?
            }
            Shape::Qualified { keyword: "", of } => self.declare_within(of, inner, depth, parts)?,
            // `*const p`, but `const int i`.
            Shape::Qualified { keyword, of } => match self.shape(of)? {
                Shape::Pointer(_) => self.declare_within(of, spaced(keyword, &inner), depth, parts)?,
                _ => format!("{keyword} {}", self.declare_within(of, inner, depth, parts)?),
            },
            Shape::Function { returns, takes, variadic } => {
                let mut all = Vec::new();
                for one in &takes {
                    if *parts == 0 {
                        break;
                    }
                    all.push(self.declare_within(*one, String::new(), depth, parts)?);
                }
                if variadic {
                    all.push("...".to_owned());
                } else if all.is_empty() {
                    all.push("void".to_owned());
                }
                self.declare_within(returns, format!("{inner}({})", all.join(", ")), depth, parts)?
            }
        })
    }
}
