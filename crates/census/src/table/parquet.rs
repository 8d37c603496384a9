//! The table as a Parquet file, a row group a window. Threads encode row groups; the file takes them in order.

use super::order::Order;
use crate::error::{CensusError, Result};
use crate::frames::{Column, Frames, NULL_INT, NULL_LONG};
use crate::names::{NameId, Names};
use crate::schema::{COLUMNS, Definition, Encoding, Kind};
use crate::source::{Missing, Provenance};
use bytes::Bytes;
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel};
use parquet::column::writer::{ColumnCloseResult, ColumnWriter, get_column_writer};
use parquet::data_type::ByteArray;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder, WriterPropertiesPtr};
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnPath, SchemaDescriptor, Type, TypePtr};
use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

/// zstd 3: levels 9 and 19 save 3 and 6 % for 1.4 and 8 times the time.
const LEVEL: i32 = 3;
/// Rows of a page: what a query that the page index serves reads at least.
const PAGE_ROWS: usize = 32 << 10;
/// Version of the schema, in the file's metadata.
const SCHEMA_VERSION: &str = "1";

/// Makes row groups.
pub struct ParquetTable {
    schema: TypePtr,
    descriptor: SchemaDescriptor,
    properties: WriterPropertiesPtr,
    order: Order,
}

/// A row group, encoded.
pub struct RowGroup(Vec<(Bytes, ColumnCloseResult)>);

/// The file.
pub struct ParquetFile<W: Write + Send>(SerializedFileWriter<W>);

impl ParquetTable {
    /// Tables whose row groups are in `order`.
    ///
    /// # Errors
    /// The schema is not valid.
    pub fn new(order: Order) -> Result<Self> {
        let fields = COLUMNS.iter().map(field).collect::<Result<Vec<_>>>()?;
        let schema = Type::group_type_builder("page_frames").with_fields(fields).build().map_err(other)?;
        let schema = Arc::new(schema);
        let mut properties = properties()?;
        for column in COLUMNS {
            if column.encoding == Encoding::Delta {
                let path = ColumnPath::from(column.name);
                properties = properties
                    .set_column_dictionary_enabled(path.clone(), false)
                    .set_column_encoding(path, parquet::basic::Encoding::DELTA_BINARY_PACKED);
            }
        }
        if order == Order::Pfn {
            let pfn = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
            properties = properties.set_sorting_columns(Some(vec![pfn]));
        }
        let descriptor = SchemaDescriptor::new(schema.clone());
        Ok(Self { schema, descriptor, properties: Arc::new(properties.build()), order })
    }

    /// Encodes a window.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn row_group(&self, frames: &Frames, names: &Names) -> Result<RowGroup> {
        let places = self.order.places(frames, names);
        let columns = COLUMNS.iter().enumerate().map(|(number, definition)| {
            let mut sink = TrackedWrite::new(Vec::new());
            let pages = Box::new(SerializedPageWriter::new(&mut sink));
            let mut writer = get_column_writer(self.descriptor.column(number), self.properties.clone(), pages);
            write_column(&mut writer, definition, frames.column(definition.id), &places, names)?;
            let close = writer.close().map_err(other)?;
            Ok((Bytes::from(sink.into_inner().map_err(other)?), close))
        });
        Ok(RowGroup(columns.collect::<Result<_>>()?))
    }

    /// Begins the file.
    ///
    /// # Errors
    /// `out` cannot be written.
    pub fn file<W: Write + Send>(&self, out: W) -> Result<ParquetFile<W>> {
        SerializedFileWriter::new(out, self.schema.clone(), self.properties.clone()).map(ParquetFile).map_err(other)
    }
}

impl<W: Write + Send> ParquetFile<W> {
    /// Appends a row group.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, group: RowGroup) -> Result<()> {
        let mut writer = self.0.next_row_group().map_err(other)?;
        for (bytes, close) in group.0 {
            writer.append_column(&bytes, close).map_err(other)?;
        }
        writer.close().map_err(other)?;
        Ok(())
    }

    /// Ends the file, with where its rows come from.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, provenance: &Provenance, missing: Missing) -> Result<W> {
        append_provenance(&mut self.0, provenance, missing);
        self.0.into_inner().map_err(other)
    }
}

/// What all our files are written with.
pub(super) fn properties() -> Result<WriterPropertiesBuilder> {
    let level = ZstdLevel::try_new(LEVEL).map_err(other)?;
    Ok(WriterProperties::builder()
        .set_compression(Compression::ZSTD(level))
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_created_by(concat!("coresift ", env!("CARGO_PKG_VERSION")).to_owned()))
}

/// Puts into the file's metadata where its rows come from.
pub(super) fn append_provenance<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    provenance: &Provenance,
    missing: Missing,
) {
    let pairs = [
        ("coresift.schema", SCHEMA_VERSION.to_owned()),
        ("coresift.source", provenance.source.clone()),
        ("coresift.host", provenance.host.clone()),
        ("coresift.kernel", provenance.kernel.clone()),
        ("coresift.time_us", provenance.time.to_string()),
        ("coresift.unknown", provenance.unknown.join("\n")),
        ("coresift.missing.no_page", missing.no_page.to_string()),
        ("coresift.missing.short", missing.short.to_string()),
        ("coresift.missing.failed", missing.failed.to_string()),
        ("coresift.missing.lost", missing.lost.to_string()),
    ];
    for (key, value) in pairs {
        file.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
    }
}

pub(super) fn field(column: &Definition) -> Result<TypePtr> {
    let (physical, logical) = match column.kind {
        Kind::Long => (Physical::INT64, None),
        Kind::Int(bits) => {
            let bit_width = i8::try_from(bits).unwrap_or(32);
            (Physical::INT32, Some(LogicalType::integer(bit_width, true)))
        }
        Kind::Name => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Instant => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS))),
    };
    let repetition = if column.nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let field =
        Type::primitive_type_builder(column.name, physical).with_logical_type(logical).with_repetition(repetition);
    field.build().map(Arc::new).map_err(other)
}

/// Writes the values at `places`.
fn write_column(
    writer: &mut ColumnWriter<'_>,
    definition: &Definition,
    column: Column<'_>,
    places: &[u32],
    names: &Names,
) -> Result<()> {
    let at = |place: u32| place as usize;
    match writer {
        ColumnWriter::Int64ColumnWriter(writer) => {
            let mut values = Vec::with_capacity(places.len());
            match column {
                Column::Long(all) => values.extend(places.iter().filter_map(|p| all.get(at(*p)))),
                Column::Times(all, factor) => {
                    values.extend(places.iter().filter_map(|p| all.get(at(*p))).map(|v| v.saturating_mul(factor)));
                }
                Column::SameLong(value) => values.resize(places.len(), value),
                _ => return Err(mismatch(definition)),
            }
            let levels = definition.nullable.then(|| levels(&values, |v| *v != NULL_LONG));
            if levels.is_some() {
                values.retain(|v| *v != NULL_LONG);
            }
            writer.write_batch(&values, levels.as_deref(), None).map_err(other)?;
        }
        ColumnWriter::Int32ColumnWriter(writer) => {
            let Column::Int(all) = column else { return Err(mismatch(definition)) };
            let mut values: Vec<i32> = places.iter().filter_map(|p| all.get(at(*p))).copied().collect();
            let levels = definition.nullable.then(|| levels(&values, |v| *v != NULL_INT));
            values.retain(|v| *v != NULL_INT);
            writer.write_batch(&values, levels.as_deref(), None).map_err(other)?;
        }
        ColumnWriter::ByteArrayColumnWriter(writer) => {
            let values: Vec<Option<ByteArray>> = match column {
                Column::Name(all) => {
                    let mut texts: HashMap<NameId, Option<ByteArray>> = HashMap::new();
                    let mut text = |id: NameId| texts.entry(id).or_insert_with(|| array(names, id)).clone();
                    places.iter().filter_map(|p| all.get(at(*p))).map(|id| text(*id)).collect()
                }
                Column::SameName(id) => vec![array(names, id); places.len()],
                Column::Class(all) => places
                    .iter()
                    .filter_map(|p| all.get(at(*p)))
                    .map(|c| Some(ByteArray::from(Bytes::from_static(c.name().as_bytes()))))
                    .collect(),
                Column::Mapping(all) => places
                    .iter()
                    .filter_map(|p| all.get(at(*p)))
                    .map(|m| m.map(|m| ByteArray::from(Bytes::from_static(m.name().as_bytes()))))
                    .collect(),
                _ => return Err(mismatch(definition)),
            };
            let levels = definition.nullable.then(|| levels(&values, Option::is_some));
            let values: Vec<ByteArray> = values.into_iter().flatten().collect();
            writer.write_batch(&values, levels.as_deref(), None).map_err(other)?;
        }
        _ => return Err(mismatch(definition)),
    }
    Ok(())
}

fn array(names: &Names, id: NameId) -> Option<ByteArray> {
    names.text(id).map(|text| ByteArray::from(Bytes::copy_from_slice(text.as_bytes())))
}

/// Definition levels: 1 where there is a value, 0 where there is none.
fn levels<T>(values: &[T], there: impl Fn(&T) -> bool) -> Vec<i16> {
    values.iter().map(|v| i16::from(there(v))).collect()
}

pub(super) fn other(error: parquet::errors::ParquetError) -> CensusError {
    CensusError::Output(std::io::Error::other(error))
}

fn mismatch(definition: &Definition) -> CensusError {
    CensusError::Output(std::io::Error::other(format!("column {} is not of its kind", definition.name)))
}
