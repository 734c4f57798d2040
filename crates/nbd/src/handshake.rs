//! The handshake: fixed newstyle, options until the client has chosen an export.
//!
//! A client's message takes at most [`OPTION_MAX`] bytes of memory; longer data is read and
//! dropped. The caller limits the time of the whole handshake.

use crate::connection::{End, Input, Link};
use crate::export::{Exports, Served};
use crate::refusal::{Reason, Why};
use crate::tls::Tls;
use crate::volume::Volume;
use crate::wire::{
    ALLOCATION, ALLOCATION_ID, Fields, GREETING, OPTION_HEADER, OPTION_MAGIC, OPTION_REPLY_MAGIC,
    STRING_MAX, handshake, info, option, option_reply,
};
use rustix::io::Errno;
use std::io::IoSlice;
use std::rc::Rc;

/// Maximum number of bytes of an option's data that are parsed.
const OPTION_MAX: usize = 32 << 10;

/// The client's choices in the handshake.
pub(crate) struct Agreed<V> {
    pub(crate) export: Rc<Served<V>>,
    pub(crate) structured: bool,
    /// Whether BLOCK_STATUS reports allocation.
    pub(crate) allocation: bool,
}

/// The step after an option.
enum Next<V> {
    /// The next option is expected.
    Option,
    /// Transmission begins with this choice.
    Go(Agreed<V>),
    /// The client has left.
    Bye,
}

/// The refusal of an option: type and message of the reply.
struct No(u32, &'static str);

struct Handshake<'a, V> {
    link: &'a Rc<Link>,
    exports: &'a Exports<V>,
    tls: &'a Tls,
    no_zeroes: bool,
    structured: bool,
    /// Name of the export for which the client has set the metadata context.
    context: Option<Vec<u8>>,
}

/// Performs the handshake. Returns `None` if the client left cleanly.
pub(crate) async fn shake_hands<V: Volume>(
    link: &Rc<Link>,
    input: &mut Input,
    exports: &Exports<V>,
    tls: &Tls,
) -> Result<Option<Agreed<V>>, End> {
    let mut greeting = GREETING.to_vec();
    let ours = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    greeting.extend_from_slice(&ours.to_be_bytes());
    say(link, &greeting).await?;
    input.need(4).await?;
    let theirs = Fields(input.take(4)).u32().ok_or(End::Broken)?;
    if theirs & !u32::from(ours) != 0 {
        return Err(End::Broken);
    }
    let no_zeroes = theirs & u32::from(handshake::NO_ZEROES) != 0;
    let mut state = Handshake { link, exports, tls, no_zeroes, structured: false, context: None };
    loop {
        match state.option(input).await? {
            Next::Option => {}
            Next::Go(agreed) => return Ok(Some(agreed)),
            Next::Bye => return Ok(None),
        }
    }
}

/// Sends all of `bytes`.
async fn say(link: &Link, bytes: &[u8]) -> Result<(), End> {
    let mut sent = 0;
    loop {
        let result = match sent < bytes.len() {
            true => link.stream.write(&[IoSlice::new(&bytes[sent..])]),
            false => match link.stream.flush() {
                Ok(()) => return Ok(()),
                Err(error) => Err(error),
            },
        };
        match result {
            Ok(count) => sent += count,
            Err(Errno::AGAIN) => link.stream.writable(&link.rt).await,
            Err(_) => return Err(End::Broken),
        }
    }
}

/// Appends a reply to `option` to `out`.
fn add_reply(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(length as u32).to_be_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

impl<V: Volume> Handshake<'_, V> {
    /// Takes one option and answers it.
    async fn option(&mut self, input: &mut Input) -> Result<Next<V>, End> {
        input.need(OPTION_HEADER).await?;
        let mut fields = Fields(input.take(OPTION_HEADER));
        let (magic, option, length) = (fields.u64(), fields.u32(), fields.u32());
        let (Some(OPTION_MAGIC), Some(option), Some(length)) = (magic, option, length) else {
            return Err(End::Broken);
        };
        if length as usize > OPTION_MAX {
            input.discard(u64::from(length)).await?;
            // No export has a name of that length, and EXPORT_NAME has no error reply.
            if option == option::EXPORT_NAME {
                return Err(End::Broken);
            }
            let no = No(option_reply::TOO_BIG, "more than 32 KiB for one option");
            return self.refuse(option, no).await;
        }
        input.need(length as usize).await?;
        let data = input.take(length as usize).to_vec();
        if self.tls.is_required() && !self.link.stream.is_tls() {
            match option {
                option::ABORT | option::STARTTLS => {}
                option::EXPORT_NAME => {
                    self.link.note_refused(Some(Reason::PlainText.into()));
                    return Err(End::Broken);
                }
                _ => {
                    self.link.note_refused(Some(Reason::PlainText.into()));
                    let no = No(option_reply::TLS_REQUIRED, "this server requires TLS first");
                    return self.refuse(option, no).await;
                }
            }
        }
        match option {
            option::EXPORT_NAME => self.export_name(&data).await,
            option::ABORT => {
                // The client leaves in any case, so a failure to reply is ignored.
                let _ = self.reply(option, option_reply::ACK, &[]).await;
                Ok(Next::Bye)
            }
            option::STARTTLS => self.start_tls(&data, input).await,
            _ => match self.answer(option, &data) {
                Ok((out, next)) => {
                    say(self.link, &out).await?;
                    Ok(next)
                }
                Err(no) => self.refuse(option, no).await,
            },
        }
    }

    async fn reply(&self, option: u32, kind: u32, data: &[u8]) -> Result<(), End> {
        let mut out = Vec::new();
        add_reply(&mut out, option, kind, &[data]);
        say(self.link, &out).await
    }

    async fn refuse(&self, option: u32, No(kind, why): No) -> Result<Next<V>, End> {
        self.reply(option, kind, why.as_bytes()).await?;
        Ok(Next::Option)
    }

    /// Answers EXPORT_NAME, the old way to begin: nothing is negotiated, and an unknown name ends
    /// the connection.
    async fn export_name(&self, name: &[u8]) -> Result<Next<V>, End> {
        let Some(export) = self.exports.find(name) else { return Err(End::Broken) };
        let mut out = export.size().to_be_bytes().to_vec();
        out.extend_from_slice(&export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        say(self.link, &out).await?;
        Ok(Next::Go(self.agree(export, name)))
    }

    fn agree(&self, export: &Rc<Served<V>>, name: &[u8]) -> Agreed<V> {
        let allocation = self.context.as_deref() == Some(name);
        Agreed { export: export.clone(), structured: self.structured, allocation }
    }

    async fn start_tls(&mut self, data: &[u8], input: &Input) -> Result<Next<V>, End> {
        let option = option::STARTTLS;
        if !data.is_empty() || self.link.stream.is_tls() {
            let no = No(option_reply::INVALID, "STARTTLS comes once, and without data");
            return self.refuse(option, no).await;
        }
        let Some(connection) = self.tls.connection() else {
            self.link.note_refused(Some(Reason::NotOffered.into()));
            let no = No(option_reply::POLICY, "this server does not offer TLS");
            return self.refuse(option, no).await;
        };
        // Bytes that came before TLS may be from anyone, so they must not count as sent under TLS.
        if !input.held().is_empty() {
            return Err(End::Broken);
        }
        self.reply(option, option_reply::ACK, &[]).await?;
        let link = self.link;
        link.note_refused(Some(Reason::Tls.into()));
        link.stream.start_tls(connection);
        loop {
            match link.stream.shake_hands() {
                Ok(true) => break,
                Ok(false) => {}
                Err(Errno::AGAIN) if link.stream.is_drained() => {
                    link.stream.readable(&link.rt).await;
                }
                Err(Errno::AGAIN) => link.stream.writable(&link.rt).await,
                Err(_) => {
                    let why = link.stream.failure().map(Why::from);
                    link.note_refused(Some(why.unwrap_or(Reason::Tls.into())));
                    return Err(End::Broken);
                }
            }
        }
        link.note_refused(None);
        // The client must negotiate again: options sent in plain text do not count.
        (self.structured, self.context) = (false, None);
        Ok(Next::Option)
    }

    /// Answers the options that the server can answer without waiting.
    fn answer(&mut self, option: u32, data: &[u8]) -> Result<(Vec<u8>, Next<V>), No> {
        let mut out = Vec::new();
        let mut next = Next::Option;
        match option {
            option::LIST => self.list(data, &mut out)?,
            option::STRUCTURED_REPLY => {
                if !data.is_empty() {
                    return Err(No(option_reply::INVALID, "STRUCTURED_REPLY comes without data"));
                }
                self.structured = true;
            }
            option::INFO => {
                self.info(option, data, &mut out)?;
            }
            option::GO => next = Next::Go(self.info(option, data, &mut out)?),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.context(option, data, &mut out)?;
            }
            _ => return Err(No(option_reply::UNSUPPORTED, "this server does not know the option")),
        }
        add_reply(&mut out, option, option_reply::ACK, &[]);
        Ok((out, next))
    }

    fn list(&self, data: &[u8], out: &mut Vec<u8>) -> Result<(), No> {
        if !data.is_empty() {
            return Err(No(option_reply::INVALID, "LIST comes without data"));
        }
        for export in self.exports.iter() {
            let name = export.name().as_bytes();
            let length = (name.len() as u32).to_be_bytes();
            let parts: [&[u8]; 3] = [&length, name, export.description().as_bytes()];
            add_reply(out, option::LIST, option_reply::SERVER, &parts);
        }
        Ok(())
    }

    fn find(&self, name: &[u8]) -> Result<&Rc<Served<V>>, No> {
        if name.len() > STRING_MAX {
            return Err(No(option_reply::INVALID, "a name is at most 4096 bytes"));
        }
        let found = self.exports.find(name);
        found.ok_or(No(option_reply::UNKNOWN, "no export has this name"))
    }

    /// Answers the options INFO and GO.
    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<Agreed<V>, No> {
        let broken = || No(option_reply::INVALID, "lengths within the option do not add up");
        let mut fields = Fields(data);
        let name = fields.string().ok_or_else(broken)?;
        let count = fields.u16().ok_or_else(broken)?;
        let mut wanted = Vec::new();
        for _ in 0..count {
            wanted.push(fields.u16().ok_or_else(broken)?);
        }
        if !fields.is_empty() {
            return Err(broken());
        }
        let export = self.find(name)?;
        let mut add = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let all: Vec<&[u8]> = [&kind[..]].into_iter().chain(parts.iter().copied()).collect();
            add_reply(out, option, option_reply::INFO, &all);
        };
        let flags = export.flags(self.structured);
        add(info::EXPORT, &[&export.size().to_be_bytes(), &flags.to_be_bytes()]);
        if wanted.contains(&info::NAME) {
            add(info::NAME, &[export.name().as_bytes()]);
        }
        if wanted.contains(&info::DESCRIPTION) && !export.description().is_empty() {
            add(info::DESCRIPTION, &[export.description().as_bytes()]);
        }
        // The server sends this even if the client did not ask for it; clients that do not know it
        // skip it.
        let [least, preferred, most] = export.sizes().map(u32::to_be_bytes);
        add(info::BLOCK_SIZE, &[&least, &preferred, &most]);
        Ok(self.agree(export, name))
    }

    /// Answers the options LIST_META_CONTEXT and SET_META_CONTEXT.
    fn context(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Result<(), No> {
        let broken = || No(option_reply::INVALID, "lengths within the option do not add up");
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            // SET_META_CONTEXT drops the earlier context, even if it fails.
            self.context = None;
        }
        if !self.structured {
            return Err(No(option_reply::INVALID, "contexts require structured replies first"));
        }
        let mut fields = Fields(data);
        let name = fields.string().ok_or_else(broken)?;
        let queries = fields.u32().ok_or_else(broken)?;
        let mut matched = queries == 0 && !sets;
        for _ in 0..queries {
            let query = fields.string().ok_or_else(broken)?;
            matched |= query == ALLOCATION || (!sets && query == b"base:");
        }
        if !fields.is_empty() {
            return Err(broken());
        }
        self.find(name)?;
        if matched {
            let id = if sets { ALLOCATION_ID } else { 0 }.to_be_bytes();
            add_reply(out, option, option_reply::META_CONTEXT, &[&id, ALLOCATION]);
            if sets {
                self.context = Some(name.to_vec());
            }
        }
        Ok(())
    }
}
