//! Counts as a Parquet file: the small table. A census takes tens of kilobytes of it, so that those of many hosts and days can be kept.

use super::parquet::{append_provenance, field, other, properties};
use crate::counts::{Counts, Value};
use crate::error::Result;
use crate::names::Names;
use crate::schema::{ColumnId, Definition};
use crate::source::{Missing, Provenance};
use parquet::basic::{Repetition, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use std::io::Write;
use std::sync::Arc;

/// The columns that the frames of a small table are counted by.
pub const SMALL: [ColumnId; 8] = {
    use ColumnId as C;
    [C::Class, C::Slab, C::Order, C::Node, C::Zone, C::Mapping, C::Cgroup, C::CgroupPath]
};

/// The columns before them, which make the tables of many hosts and days one table.
pub const BEFORE: [ColumnId; 4] = [ColumnId::Host, ColumnId::Kernel, ColumnId::Time, ColumnId::Source];

/// The last column: page frames.
pub const PAGES: &str = "pages";

/// Writes `counts`, by [`SMALL`], to `out`: the columns of [`BEFORE`] and [`SMALL`], and [`PAGES`].
///
/// # Errors
/// `out` cannot be written.
pub fn small_table<W: Write + Send>(
    counts: &Counts,
    names: &Names,
    provenance: &Provenance,
    missing: Missing,
    out: W,
) -> Result<W> {
    let rows = counts.only(&SMALL).rows(names);
    let definitions: Vec<&Definition> = BEFORE.iter().chain(&SMALL).filter_map(|id| id.definition()).collect();
    let mut fields = definitions.iter().map(|definition| field(definition)).collect::<Result<Vec<_>>>()?;
    let pages = Type::primitive_type_builder(PAGES, Physical::INT64).with_repetition(Repetition::REQUIRED);
    fields.push(Arc::new(pages.build().map_err(other)?));
    let schema = Type::group_type_builder("page_summary").with_fields(fields).build().map_err(other)?;
    let properties = Arc::new(properties()?.build());
    let mut file = SerializedFileWriter::new(out, Arc::new(schema), properties).map_err(other)?;
    let mut group = file.next_row_group().map_err(other)?;
    for (number, definition) in definitions.iter().enumerate() {
        let values: Vec<Value> = match BEFORE.get(number) {
            Some(id) => vec![constant(*id, provenance); rows.len()],
            None => rows.keys().filter_map(|values| values.get(number - BEFORE.len())).cloned().collect(),
        };
        let Some(mut column) = group.next_column().map_err(other)? else { break };
        write(column.untyped(), definition, &values)?;
        column.close().map_err(other)?;
    }
    if let Some(mut column) = group.next_column().map_err(other)? {
        let pages: Vec<Value> = rows.values().map(|pages| Value::Number(pages.cast_signed())).collect();
        write_values(column.untyped(), &pages, None)?;
        column.close().map_err(other)?;
    }
    group.close().map_err(other)?;
    append_provenance(&mut file, provenance, missing);
    file.into_inner().map_err(other)
}

fn constant(id: ColumnId, provenance: &Provenance) -> Value {
    let text = |text: &str| if text.is_empty() { Value::Null } else { Value::Text(text.into()) };
    match id {
        ColumnId::Host => text(&provenance.host),
        ColumnId::Kernel => text(&provenance.kernel),
        ColumnId::Source => text(&provenance.source),
        ColumnId::Time => Value::Number(provenance.time),
        _ => Value::Null,
    }
}

fn write(writer: &mut ColumnWriter<'_>, definition: &Definition, values: &[Value]) -> Result<()> {
    if !definition.nullable {
        return write_values(writer, values, None);
    }
    let levels: Vec<i16> = values.iter().map(|value| i16::from(*value != Value::Null)).collect();
    write_values(writer, values, Some(&levels))
}

/// Writes the values that are there.
fn write_values(writer: &mut ColumnWriter<'_>, values: &[Value], levels: Option<&[i16]>) -> Result<()> {
    let numbers =
        values.iter().filter_map(|value| if let Value::Number(number) = value { Some(*number) } else { None });
    match writer {
        ColumnWriter::Int64ColumnWriter(writer) => {
            writer.write_batch(&numbers.collect::<Vec<_>>(), levels, None).map_err(other)?;
        }
        ColumnWriter::Int32ColumnWriter(writer) => {
            let numbers: Vec<i32> = numbers.map(|number| i32::try_from(number).unwrap_or(i32::MAX)).collect();
            writer.write_batch(&numbers, levels, None).map_err(other)?;
        }
        ColumnWriter::ByteArrayColumnWriter(writer) => {
            let texts = values.iter().filter_map(|value| if let Value::Text(text) = value { Some(text) } else { None });
            let texts: Vec<ByteArray> = texts.map(|text| ByteArray::from(text.as_bytes().to_vec())).collect();
            writer.write_batch(&texts, levels, None).map_err(other)?;
        }
        _ => {
            return Err(other(parquet::errors::ParquetError::General("no column of this kind is in the table".into())));
        }
    }
    Ok(())
}
