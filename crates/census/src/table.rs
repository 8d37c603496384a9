//! The table as a file.

mod order;
#[cfg(feature = "parquet")]
mod parquet;
mod read;
#[cfg(feature = "parquet")]
mod small;
mod text;

pub use order::Order;
#[cfg(feature = "parquet")]
pub use parquet::{ParquetFile, ParquetTable, RowGroup};
pub use read::TableFile;
#[cfg(feature = "parquet")]
pub use small::{BEFORE, PAGES, SMALL, small_table};
pub use text::{TextFormat, TextTable};
