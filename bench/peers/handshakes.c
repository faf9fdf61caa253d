// TLS handshakes a second: threads that connect, shake hands, ask ApiVersions once (which brings a ticket) and close.
// usage: handshakes -p port -c threads -t secs [-r] [-P pid]   -r: each thread resumes its own session
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <unistd.h>
#include <pthread.h>
#include <time.h>
#include <signal.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>
#include <openssl/ssl.h>
#include <openssl/err.h>
static SSL_CTX*tls;static int port,resume_,stop_;static uint64_t done_,resumed;
static double now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+t.tv_nsec*1e-9;}
static void die(const char*m){perror(m);ERR_print_errors_fp(stderr);exit(2);}
static const uint8_t ask[]={0,0,0,14,0,18,0,2,0,0,0,1,0,4,'l','o','a','d'};
static void*work(void*x){SSL_SESSION*s=0;uint8_t b[65536];
  while(!__atomic_load_n(&stop_,__ATOMIC_RELAXED)){int f=socket(AF_INET,SOCK_STREAM,0),one=1;struct sockaddr_in a={.sin_family=AF_INET,.sin_addr.s_addr=htonl(0x7f000001),.sin_port=htons(port)};
    if(connect(f,(void*)&a,sizeof a))die("connect");setsockopt(f,IPPROTO_TCP,TCP_NODELAY,&one,4);
    SSL*c=SSL_new(tls);SSL_set_fd(c,f);if(s)SSL_set_session(c,s);if(SSL_connect(c)!=1)die("handshake");
    if(SSL_write(c,ask,sizeof ask)<=0)die("write");size_t n=0,w=4;
    while(n<w){int r=SSL_read(c,b+n,sizeof b-n);if(r<=0)die("read");n+=r;if(n>=4)w=4+((size_t)b[0]<<24|b[1]<<16|b[2]<<8|b[3]);}
    if(SSL_session_reused(c))__atomic_fetch_add(&resumed,1,__ATOMIC_RELAXED);
    if(resume_){SSL_SESSION_free(s);s=SSL_get1_session(c);}
    SSL_shutdown(c);SSL_free(c);close(f);__atomic_fetch_add(&done_,1,__ATOMIC_RELAXED);}
  return 0;}
static double cpu(int pid){char p[64],b[1024];snprintf(p,64,"/proc/%d/stat",pid);FILE*h=fopen(p,"r");if(!h)return 0;size_t n=fread(b,1,1023,h);b[n]=0;fclose(h);unsigned long u=0,k=0;char*q=strrchr(b,')');if(q)sscanf(q+2,"%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",&u,&k);return (u+k)/(double)sysconf(_SC_CLK_TCK);}
int main(int argc,char**argv){int o,n=4,pid=0;double secs=3;
  while((o=getopt(argc,argv,"p:c:t:rP:"))>0)switch(o){case'p':port=atoi(optarg);break;case'c':n=atoi(optarg);break;case't':secs=atof(optarg);break;case'r':resume_=1;break;case'P':pid=atoi(optarg);break;default:return 1;}
  signal(SIGPIPE,SIG_IGN);tls=SSL_CTX_new(TLS_client_method());SSL_CTX_set_session_cache_mode(tls,SSL_SESS_CACHE_CLIENT);
  pthread_t t[256];for(int i=0;i<n;i++)pthread_create(t+i,0,work,0);
  usleep(500000);uint64_t d=done_,r=resumed;double c=cpu(pid),b=now();usleep(secs*1e6);d=done_-d;r=resumed-r;c=cpu(pid)-c;b=now()-b;
  stop_=1;for(int i=0;i<n;i++)pthread_join(t[i],0);
  printf("{\"per_s\":%.1f,\"resumed\":%.3f,\"cpu_ms\":%.3f}\n",d/b,d?r/(double)d:0,d?c/d*1e3:0);return 0;}
