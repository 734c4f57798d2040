//! A client's socket, plain or under TLS, non-blocking.
//!
//! One task reads and another writes. No call here waits: [`Errno::AGAIN`] means that it would have
//! to, and the caller then waits for the descriptor.

use furrow_rt::Rt;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg};
use rustls::ServerConnection;
use std::cell::RefCell;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Maximum number of bytes of plain text that TLS buffers while the socket takes no more.
const TLS_BUFFER: usize = 1 << 20;

/// A client's socket; see the module's documentation.
pub(crate) struct Stream {
    socket: Arc<OwnedFd>,
    tls: RefCell<Option<Box<ServerConnection>>>,
    /// The reason why the TLS handshake failed; `None` if it has not.
    failure: RefCell<Option<rustls::Error>>,
}

/// The socket with the traits that rustls needs.
struct Raw<'a>(&'a OwnedFd);

impl Read for Raw<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(retry(|| rustix::io::read(self.0, &mut *buffer))?)
    }
}

impl Write for Raw<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, &[IoSlice::new(buffer)])?)
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(send(self.0, buffers)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

fn send(socket: &OwnedFd, buffers: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry(|| sendmsg(socket, buffers, &mut SendAncillaryBuffer::default(), flags))
}

fn errno(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::WouldBlock => Errno::AGAIN,
        _ => Errno::from_io_error(error).unwrap_or(Errno::PROTO),
    }
}

impl Stream {
    /// Wraps a non-blocking socket.
    pub(crate) fn new(socket: OwnedFd) -> Stream {
        Stream { socket: Arc::new(socket), tls: RefCell::new(None), failure: RefCell::default() }
    }

    /// Continues under TLS. The caller then calls [`Stream::shake_hands`].
    pub(crate) fn start_tls(&self, mut tls: ServerConnection) {
        tls.set_buffer_limit(Some(TLS_BUFFER));
        *self.tls.borrow_mut() = Some(Box::new(tls));
    }

    /// Whether the connection is under TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.borrow().is_some()
    }

    /// Waits until the socket may be readable.
    pub(crate) fn readable(&self, rt: &Rt) -> furrow_rt::exec::Readiness {
        rt.readable(self.socket.clone())
    }

    /// Waits until the socket may be writable.
    pub(crate) fn writable(&self, rt: &Rt) -> furrow_rt::exec::Readiness {
        rt.writable(self.socket.clone())
    }

    /// Shuts the connection down: waiting tasks wake, reads find the end of input, and writes fail.
    pub(crate) fn cut(&self) {
        // The shutdown fails only if the connection is shut down already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    /// Reads into `buffers`, in order. Returns the number of bytes; 0 at the end of input.
    pub(crate) fn read(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<usize, Errno> {
        let mut tls = self.tls.borrow_mut();
        let Some(tls) = tls.as_mut() else {
            return retry(|| rustix::io::readv(&self.socket, buffers));
        };
        loop {
            match tls.reader().read_vectored(buffers) {
                Ok(count) => return Ok(count),
                // The peer closed without a TLS goodbye, which counts as the end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(errno(&error));
                }
                Err(_) => {}
            }
            tls.read_tls(&mut Raw(&self.socket)).map_err(|error| errno(&error))?;
            if tls.process_new_packets().is_err() {
                // Tells the client the reason. Whether that succeeds or not, the connection ends.
                let _ = tls.write_tls(&mut Raw(&self.socket));
                return Err(Errno::PROTO);
            }
        }
    }

    /// Writes as much of `buffers`, in order, as the socket takes now. Under TLS some of the bytes
    /// may stay buffered; see [`Stream::flush`].
    pub(crate) fn write(&self, buffers: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut tls = self.tls.borrow_mut();
        let Some(tls) = tls.as_mut() else {
            return send(&self.socket, buffers);
        };
        let taken = tls.writer().write_vectored(buffers).map_err(|error| errno(&error))?;
        let sent = push_tls(tls, &self.socket);
        match (taken, sent) {
            (0, Err(error)) => Err(error),
            (_, Err(error)) if error != Errno::AGAIN => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends the bytes that TLS still buffers.
    pub(crate) fn flush(&self) -> Result<(), Errno> {
        match self.tls.borrow_mut().as_mut() {
            Some(tls) => push_tls(tls, &self.socket),
            None => Ok(()),
        }
    }

    /// Does the steps of the TLS handshake that are possible now. Returns true when the handshake
    /// has ended.
    pub(crate) fn shake_hands(&self) -> Result<bool, Errno> {
        let mut tls = self.tls.borrow_mut();
        let Some(tls) = tls.as_mut() else { return Ok(true) };
        loop {
            push_tls(tls, &self.socket)?;
            if !tls.is_handshaking() {
                return Ok(true);
            }
            match tls.read_tls(&mut Raw(&self.socket)) {
                Ok(0) => return Err(Errno::PIPE),
                Ok(_) => {}
                Err(error) => return Err(errno(&error)),
            }
            if let Err(error) = tls.process_new_packets() {
                let _ = tls.write_tls(&mut Raw(&self.socket));
                *self.failure.borrow_mut() = Some(error);
                return Err(Errno::PROTO);
            }
        }
    }

    /// The reason why the TLS handshake failed, if the client's messages caused the failure.
    pub(crate) fn failure(&self) -> Option<rustls::Error> {
        self.failure.borrow().clone()
    }

    /// Whether no output waits, so that only the client can continue.
    pub(crate) fn is_drained(&self) -> bool {
        self.tls.borrow().as_ref().is_none_or(|tls| !tls.wants_write())
    }

    /// Sends TLS's goodbye, if that is possible without waiting, and shuts the connection down.
    pub(crate) fn close(&self) {
        if let Some(tls) = self.tls.borrow_mut().as_mut() {
            tls.send_close_notify();
            // A peer that does not get the goodbye still gets the end of the connection.
            let _ = push_tls(tls, &self.socket);
        }
        self.cut();
    }
}

fn push_tls(tls: &mut ServerConnection, socket: &OwnedFd) -> Result<(), Errno> {
    while tls.wants_write() {
        if tls.write_tls(&mut Raw(socket)).map_err(|error| errno(&error))? == 0 {
            return Err(Errno::PIPE);
        }
    }
    Ok(())
}
