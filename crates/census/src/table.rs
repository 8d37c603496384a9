//! The table as a file.

mod order;
#[cfg(feature = "parquet")]
mod parquet;

pub use order::Order;
#[cfg(feature = "parquet")]
pub use parquet::{ParquetFile, ParquetTable, RowGroup};
