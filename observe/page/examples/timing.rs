//! How long a trace takes to be opened, and its tiles to be made: `cargo run --release -p ekiden-page --example timing TRACE`.
#![forbid(unsafe_code)]

use std::{fs::File, io::BufReader, time::Instant};

use ekiden_page::{Builder, Notes, Summary, tile::TileId};
use ekiden_trace::Reader;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which trace?")?;
    let begin = Instant::now();
    let count = Reader::new(BufReader::with_capacity(1 << 20, File::open(&path)?))?.count();
    println!("{count} records read: {:?}", begin.elapsed());
    let begin = Instant::now();
    let reader = Reader::new(BufReader::with_capacity(1 << 20, File::open(&path)?))?;
    let header = reader.header().clone();
    let mut builder = Builder::new(&header);
    for record in reader {
        builder.record(&record?);
    }
    let model = builder.finish();
    println!("{} records read and ordered: {:?}", model.counters.records, begin.elapsed());
    let begin = Instant::now();
    let bytes = Summary::of(&header, &model, None, &Notes::default()).to_json().len();
    println!("summary of {bytes} bytes: {:?}", begin.elapsed());
    for depth in [0, 2, 4, 6] {
        for index in 0..1 << depth {
            let begin = Instant::now();
            if let Some(tile) = model.tile(TileId { depth, index }).filter(|_| index < 4) {
                println!("tile {depth}/{index} of {} bytes: {:?}", tile.len(), begin.elapsed());
            }
        }
    }
    Ok(())
}
