//! A trace as a Parquet file: its rows by columns, some at a time.

use std::{io::Write, sync::Arc};

use parquet::{
    basic::{Compression, ZstdLevel},
    data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type},
    errors::Result,
    file::{
        properties::WriterProperties,
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::parser::parse_message_type,
};

use crate::Row;

/// Rows that are kept before they are written.
const ROWS: usize = 1 << 15;

/// The columns, in the order in which [`Table::write`] writes them.
const SCHEMA: &str = "message record {
    required int64 time_ns;
    optional int32 cpu;
    required binary what (STRING);
    optional int32 pid;
    optional binary task (STRING);
    required int64 value;
    optional int32 piece;
    optional binary note (STRING);
}";

/// A file that is being written.
pub(crate) struct Table<W: Write + Send> {
    file: SerializedFileWriter<W>,
    time_ns: Vec<i64>,
    cpu: Vec<Option<i32>>,
    what: Vec<ByteArray>,
    pid: Vec<Option<i32>>,
    task: Vec<Option<ByteArray>>,
    value: Vec<i64>,
    piece: Vec<Option<i32>>,
    note: Vec<Option<ByteArray>>,
}

impl<W: Write + Send> Table<W> {
    pub(crate) fn new(out: W) -> Result<Self> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
        let file = SerializedFileWriter::new(out, schema, Arc::new(properties))?;
        let (time_ns, cpu, what, pid) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (task, value, piece, note) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Self { file, time_ns, cpu, what, pid, task, value, piece, note })
    }

    /// Numbers of 64 bits without a sign keep their bits.
    pub(crate) fn put(&mut self, row: &Row<'_>) -> Result<()> {
        self.time_ns.push(row.time_ns as i64);
        self.cpu.push(row.cpu.map(|cpu| cpu as i32));
        self.what.push(ByteArray::from(row.what));
        self.pid.push(row.pid.map(|pid| pid as i32));
        self.task.push(row.task.map(ByteArray::from));
        self.value.push(row.value as i64);
        self.piece.push(row.piece.map(|piece| piece as i32));
        self.note.push(row.note.map(ByteArray::from));
        if self.time_ns.len() < ROWS { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<()> {
        let mut group = self.file.next_row_group()?;
        required::<Int64Type>(&mut group, &mut self.time_ns)?;
        optional::<Int32Type>(&mut group, &mut self.cpu)?;
        required::<ByteArrayType>(&mut group, &mut self.what)?;
        optional::<Int32Type>(&mut group, &mut self.pid)?;
        optional::<ByteArrayType>(&mut group, &mut self.task)?;
        required::<Int64Type>(&mut group, &mut self.value)?;
        optional::<Int32Type>(&mut group, &mut self.piece)?;
        optional::<ByteArrayType>(&mut group, &mut self.note)?;
        group.close()?;
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.write()?;
        Ok(self.file.into_inner()?.flush()?)
    }
}

/// Writes the next column, and empties it.
fn column<W: Write + Send, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<()> {
    let mut column = group.next_column()?.expect("there are as many columns as in the schema");
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()?;
    Ok(())
}

fn required<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    values: &mut Vec<T::T>,
) -> Result<()> {
    column::<_, T>(group, values, None)?;
    values.clear();
    Ok(())
}

/// Absent values have level 0.
fn optional<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    values: &mut Vec<Option<T::T>>,
) -> Result<()> {
    let levels: Vec<i16> = values.iter().map(|value| value.is_some().into()).collect();
    let present: Vec<T::T> = values.drain(..).flatten().collect();
    column::<_, T>(group, &present, Some(&levels))
}
