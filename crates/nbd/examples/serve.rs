//! Serves a volume in memory: `cargo run --release -p furrow-nbd --example serve -- PLACE [GIB]`.
//! PLACE is unix:PATH or tcp:ADDRESS:PORT. The server ends when its standard input ends, and then
//! prints what it did.

#![allow(clippy::disallowed_methods, reason = "a program")]

use furrow_nbd::{Export, Listen, Memory, Options, Server};
use furrow_rt::{Config, Rt};
use std::error::Error;
use std::io::IsTerminal;
use std::rc::Rc;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().ok_or("which socket path, or which address?")?;
    let gib: u64 = arguments.next().map_or(Ok(1), |gib| gib.parse())?;
    let place: Listen = place.parse()?;
    let rt = Rt::new(Config::real());
    let export = Export::new("memory", Rc::new(Memory::new(gib << 18))).describe("in memory");
    let server = Server::bind(&rt, &[place], vec![export], Options::default())?;
    println!("serving at {}", server.addresses().join(" "));
    if std::io::stdin().is_terminal() {
        println!("end of input (control-D) ends it");
    }
    let input = Arc::new(rustix::io::dup(rustix::stdio::stdin())?);
    let (rt2, server2) = (rt.clone(), server.clone());
    rt.block_on(async move {
        let mut line = [0; 256];
        loop {
            rt2.readable(input.clone()).await;
            if rustix::io::read(&input, &mut line).unwrap_or(0) == 0 {
                break;
            }
        }
        server2.shutdown().await;
    });
    print!("{}", server.status().prometheus(&[]));
    Ok(())
}
